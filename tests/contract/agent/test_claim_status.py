"""A prepared claim shows its devices, by writes that hold nobody up and aren't made twice."""

import logging
from typing import Any

import pytest

from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import PodClaim
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import RESOURCE_CLAIMS, Json
from tests.contract.agent.node import AgentNode, until_true

pytestmark = pytest.mark.anyio


def shown(node: AgentNode, claim: PodClaim) -> list[Json]:
    found = node.server.object(RESOURCE_CLAIMS, claim.name, claim.namespace)["status"].get("devices", [])
    return [entry for entry in found if entry["driver"] == DRIVER_NAME]


def writes(node: AgentNode) -> int:
    return node.server.requests["apply", "resourceclaims"]


def ready(node: AgentNode, claim: PodClaim) -> list[str]:
    return [condition["status"] for entry in shown(node, claim) for condition in entry["conditions"]]


async def prepared(node: AgentNode, *devices: str) -> PodClaim:
    await node.ready()
    claim = node.allocate("train", *devices, pod="pod-1")
    await node.prepare("pod-1", claim)
    return claim


async def test_while_it_is_prepared(node: AgentNode) -> None:
    node.start_agent()
    claim = await prepared(node, "gpu-1", "gpu-6")
    await until_true(lambda: shown(node, claim))
    gpus = node.machine().state().gpus
    for entry, index in zip(shown(node, claim), (1, 6), strict=True):
        assert (entry["pool"], entry["device"]) == (NODE_NAME, f"gpu-{index}")
        assert entry["data"]["uuid"] == gpus[index].uuid
        assert entry["data"]["driverVersion"] == "580.105.08"
        assert entry["data"]["pciBusID"].startswith("0000:")
        (condition,) = entry["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "Prepared")
    await node.kubelet.unprepare("pod-1", [claim])
    await until_true(lambda: not shown(node, claim))
    assert writes(node) == 2


async def test_entries_of_other_drivers_stay(node: AgentNode) -> None:
    node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-1", pod="pod-1")
    body = node.server.object(RESOURCE_CLAIMS, "train", "default")
    theirs = {"driver": "nic.example.com", "pool": "p", "device": "nic-0"}
    body["status"]["allocation"]["devices"]["results"].append({"request": "nic", **theirs})
    body["status"]["devices"] = [{**theirs, "data": {"x": 1}}]
    node.server.put(RESOURCE_CLAIMS, body)
    await node.prepare("pod-1", claim)
    await until_true(lambda: shown(node, claim))
    await node.kubelet.unprepare("pod-1", [claim])
    await until_true(lambda: not shown(node, claim))
    left: list[Any] = node.server.object(RESOURCE_CLAIMS, "train", "default")["status"]["devices"]
    assert [(entry["driver"], entry["data"]) for entry in left] == [("nic.example.com", {"x": 1})]


async def test_a_prepared_claim_costs_two_reads_one_watch_and_one_write(node: AgentNode) -> None:
    node.start_agent()
    claim = await prepared(node, "gpu-1")
    await until_true(lambda: shown(node, claim))
    await until_true(lambda: node.server.requests["watch", "resourceclaims"])
    requests = {verb: count for (verb, plural), count in node.server.requests.items() if plural == "resourceclaims"}
    assert requests == {"get": 2, "watch": 1, "apply": 1}


async def test_a_restart_and_a_new_instance_write_nothing(node: AgentNode) -> None:
    first = node.start_agent()
    claim = await prepared(node, "gpu-1")
    await until_true(lambda: shown(node, claim))
    await first.stop()
    node.start_agent(rescan_interval=0.1)
    await node.ready()
    # It has looked at the claim again by then, and at the hardware.
    watched = node.server.requests["watch", "resourceclaims"]
    await until_true(lambda: node.server.requests["watch", "resourceclaims"] > watched)
    node.machine().lose_gpu(1)
    await until_true(lambda: ready(node, claim) == ["False"])
    assert writes(node) == 2


async def test_a_lost_gpu_is_not_ready_and_is_again_when_it_is_back(node: AgentNode) -> None:
    node.start_agent(rescan_interval=0.1)
    claim = await prepared(node, "gpu-1")
    await until_true(lambda: ready(node, claim) == ["True"])
    node.machine().lose_gpu(1)
    await until_true(lambda: ready(node, claim) == ["False"])
    (entry,) = shown(node, claim)
    assert entry["conditions"][0]["reason"] == "DeviceUnhealthy"
    node.machine().restore_gpu(1)
    await until_true(lambda: ready(node, claim) == ["True"])


async def test_a_status_that_cannot_be_written_holds_up_no_prepare(
    node: AgentNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.server.faults.fail(403, times=1_000_000, verb="apply", resource="resourceclaims", message="may not patch")
    node.start_agent()
    claim = await prepared(node, "gpu-1")

    def said() -> list[str]:
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        return [line for line in warnings if "status.devices" in line]

    await until_true(said)
    second = node.allocate("second", "gpu-2", pod="pod-2")
    assert (await node.prepare("pod-2", second))[0] == node.claim_id(second, "gpu-2")
    await until_true(lambda: writes(node) >= 3)
    (line,) = said()
    assert "may not patch" in line and "deploy/manifests" in line
    await node.kubelet.unprepare("pod-1", [claim])
    assert await node.holders("gpu-1") == []
