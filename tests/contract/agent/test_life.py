"""From start to end of one agent: what is published, registered, prepared, kept and left behind."""

import asyncio

import pytest

from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import NODES, RESOURCE_SLICES
from tests.contract.agent.node import AgentNode, until, until_true

pytestmark = pytest.mark.anyio

GPUS = [f"gpu-{index}" for index in range(8)]


async def test_start_publishes_registers_and_becomes_ready(node: AgentNode) -> None:
    agent = node.start_agent()
    status = await node.ready()
    assert status["state"] == "active"
    assert [device["name"] for device in status["devices"]] == GPUS
    assert node.devices() == GPUS
    (slice_,) = node.slices()
    (owner,) = slice_["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Node", node.server.object(NODES, NODE_NAME)["metadata"]["uid"])
    (plugin,) = node.kubelet.plugins.plugins(DRIVER_NAME)
    assert plugin.service == "v1.DRAPlugin"
    await agent.stop()


async def test_nothing_is_written_while_nothing_changes(node: AgentNode) -> None:
    node.start_agent(rescan_interval=0.1)
    await node.ready()
    machine, writes = node.machine(), _writes(node)
    machine.hang(0, "brand", seconds=0.001, times=5)
    await until_true(lambda: machine.state().faults[0].times == 0)
    assert _writes(node) == writes


def _writes(node: AgentNode) -> dict[tuple[str, str], int]:
    return {key: count for key, count in node.server.requests.items() if key[0] not in ("get", "list", "watch")}


async def test_the_kubelet_hears_of_health(node: AgentNode) -> None:
    node.start_agent(rescan_interval=0.1)
    await node.ready()
    await node.prepare("pod-1", node.allocate("train", "gpu-1", pod="pod-1"))

    def states() -> list[str]:
        values = [node.kubelet.plugins.health(DRIVER_NAME, NODE_NAME, gpu) for gpu in GPUS[:2]]
        return [value.state if value else "" for value in values]

    await until_true(lambda: states() == ["Healthy", "Healthy"])
    node.machine().lose_gpu(1)
    await until_true(lambda: states() == ["Healthy", "Unhealthy"])
    await until_true(lambda: "gpu-1" not in node.devices())
    assert await node.holders("gpu-1") == ["train"]


async def test_prepare_and_unprepare(node: AgentNode) -> None:
    node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-3", pod="pod-1")
    ids = await node.prepare("pod-1", claim)
    assert ids == [node.claim_id(claim, "gpu-3"), "k8s.gpu.nvidia.com/driver=all"]
    assert await node.holders("gpu-3") == ["train"]
    (content,) = node.claim_files().values()
    assert '"/dev/nvidia3"' in content
    await node.kubelet.unprepare("pod-1", [claim])
    assert await node.holders("gpu-3") == []
    assert node.claim_files() == {}


async def test_a_held_device_is_refused_at_once_and_named_in_full_to_its_own_namespace_only(node: AgentNode) -> None:
    node.start_agent()
    await node.ready()
    held = node.allocate("train", "gpu-3", pod="pod-1")
    await node.prepare("pod-1", held)
    with pytest.raises(PodError, match="gpu-3 is held by claim train, which is allocated the same device"):
        await node.prepare("pod-2", node.allocate("rival", "gpu-3", pod="pod-2"))
    with pytest.raises(PodError, match=f"gpu-3 is held by claim {held.uid} of another namespace"):
        await node.prepare("pod-3", node.allocate("stranger", "gpu-3", namespace="other", pod="pod-3"))
    assert await node.holders("gpu-3") == ["train"]


async def test_the_next_claim_waits_for_the_last_ones_processes(node: AgentNode) -> None:
    node.start_agent()
    await node.ready()
    first = node.allocate("first", "gpu-0", pod="pod-1")
    await node.prepare("pod-1", first)
    node.pods.run("pod-1", 4711)
    await node.kubelet.unprepare("pod-1", [first])
    second = node.allocate("second", "gpu-0", pod="pod-2")
    preparing = asyncio.create_task(node.prepare("pod-2", second))

    async def waits() -> bool:
        reasons = [entry["for"] for entry in (await node.status())["waiting"]]
        return reasons == ["gpu-0 is draining: 1 process of its former pods still running"]

    await until(waits)
    assert not preparing.done()
    node.pods.end("pod-1")
    assert (await preparing)[0] == node.claim_id(second, "gpu-0")


@pytest.mark.parametrize("by", ["a person", "the kubelet's start"])
async def test_wiped_slices_come_back(node: AgentNode, by: str) -> None:
    node.start_agent()
    await node.ready()
    before = {item["metadata"]["uid"] for item in node.slices()}
    if by == "a person":
        await node.wipe(None)
    else:
        await node.kubelet.restart()
    await until_true(lambda: not before & {item["metadata"]["uid"] for item in node.slices()})
    await until_true(lambda: node.devices() == GPUS)


async def test_a_stop_leaves_slices_and_claims_and_no_socket(node: AgentNode) -> None:
    agent = node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-3", pod="pod-1")
    await node.prepare("pod-1", claim)
    slices, files = node.slices(), node.claim_files()
    assert len(node.sockets()) == 3
    await agent.stop()
    assert (node.slices(), node.claim_files()) == (slices, files)
    assert node.sockets() == []


async def test_the_next_agent_answers_as_the_last_one_did(node: AgentNode) -> None:
    first = node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-3", pod="pod-1")
    ids = await node.prepare("pod-1", claim)
    files, generation = node.claim_files(), node.slices()[0]["spec"]["pool"]["generation"]
    await first.stop()
    node.start_agent()
    await node.ready()
    await node.kubelet.restart()
    await node.ready()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    assert await node.prepare("pod-1", claim) == ids
    assert node.claim_files() == files
    await until_true(lambda: node.devices() == GPUS)
    assert node.slices()[0]["spec"]["pool"]["generation"] >= generation
    await node.kubelet.unprepare("pod-1", [claim])
    assert await node.holders("gpu-3") == []


async def test_a_restart_writes_no_slice(node: AgentNode) -> None:
    first = node.start_agent()
    await node.ready()
    await first.stop()
    before = node.server.object(RESOURCE_SLICES, node.slices()[0]["metadata"]["name"])
    node.start_agent()
    await node.ready()
    assert node.slices() == [before]


async def test_an_upgrade_hands_claims_over(node: AgentNode) -> None:
    old = node.start_agent(pod_uid="old")
    await node.ready()
    claim = node.allocate("train", "gpu-3", pod="pod-1")
    ids = await node.prepare("pod-1", claim)
    node.start_agent(pod_uid="new")

    async def new_is_active() -> bool:
        status = await node.status()
        return status["instance"] == "new" and status["ready"] is True

    await until(new_is_active)
    await node.kubelet.restart()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    assert await node.prepare("pod-1", claim) == ids
    await old.stop()
    await until(new_is_active)
    assert await node.holders("gpu-3") == ["train"]
    await node.kubelet.unprepare("pod-1", [claim])
    assert await node.holders("gpu-3") == []


async def test_a_gpu_that_comes_late_is_published(node: AgentNode) -> None:
    machine = node.machine()
    machine.remove_gpu(7)
    node.start_agent(rescan_interval=0.1)
    await node.ready()
    assert node.devices() == GPUS[:7]
    machine.restore_gpu(7)
    await until_true(lambda: node.devices() == GPUS)
