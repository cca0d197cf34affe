"""A GPU that another device plugin has given out isn't offered to claims, and is again once that is over."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import EVENTS, PODS
from kubeletplugin.pb.podresources.v1 import api_pb2 as podresources
from tests.contract.agent.classic import KubeletDevices
from tests.contract.agent.node import AgentNode, until, until_true

pytestmark = pytest.mark.anyio

POD = "5f2b8d8a-52a1-4c0c-9f4d-1f2b8d8a52a1"


@pytest.fixture
async def devices(node: AgentNode) -> AsyncIterator[KubeletDevices]:
    devices = KubeletDevices(node.settings.kubelet_root_dir)
    await devices.start()
    yield devices
    await devices.stop()


def uuid(node: AgentNode, gpu: int) -> str:
    return node.machine().state().gpus[gpu].uuid


def offered(node: AgentNode, device: str) -> bool:
    return device in node.devices()


def notes(node: AgentNode, reason: str) -> list[str]:
    return [str(event["note"]) for event in node.server.objects(EVENTS) if event["reason"] == reason]


async def test_one_that_was_given_out_before_is_never_offered(node: AgentNode, devices: KubeletDevices) -> None:
    devices.allocate(POD, "old-school", f"{uuid(node, 2)}::1")
    node.pods.run(POD, 77)
    first = node.start_agent()
    await node.ready()
    assert node.devices() == [f"gpu-{index}" for index in (0, 1, 3, 4, 5, 6, 7)]
    assert [item["metadata"]["generation"] for item in node.slices()] == [1]
    await until_true(lambda: notes(node, "DeviceTaken"))
    (note,) = notes(node, "DeviceTaken")
    assert "gpu-2 isn't offered" in note and "default/old-school" in note and "nvidia.com/gpu" in note
    await first.stop()
    node.start_agent()
    await node.ready()
    devices.end(POD)
    await until_true(lambda: notes(node, "DeviceReturned"))
    assert notes(node, "DeviceTaken") == [note], "a restart is no news"


async def test_one_that_is_given_out_now_leaves_and_comes_back(node: AgentNode, devices: KubeletDevices) -> None:
    node.start_agent()
    await node.ready()
    devices.allocate(POD, "old-school", uuid(node, 2))
    await until_true(lambda: not offered(node, "gpu-2"))
    found = next(entry for entry in (await node.status())["devices"] if entry["name"] == "gpu-2")
    assert found["problem"] == f"another device plugin gave it out as nvidia.com/gpu (to pod {POD})"
    devices.end(POD)
    await until_true(lambda: offered(node, "gpu-2"))
    await until_true(lambda: notes(node, "DeviceReturned"))


async def test_a_claim_that_was_allocated_it_waits_and_gets_it(node: AgentNode, devices: KubeletDevices) -> None:
    node.start_agent()
    await node.ready()
    devices.allocate(POD, "old-school", uuid(node, 2))
    await until_true(lambda: not offered(node, "gpu-2"))
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    call = asyncio.create_task(node.prepare("pod-1", claim))

    async def waits() -> str:
        return " ".join(entry["for"] for entry in (await node.status())["waiting"])

    await until(waits)
    reason = await waits()
    assert f"gave it out as nvidia.com/gpu (to pod {POD})" in reason and "old-school" not in reason
    devices.end(POD)
    assert (await call)[0] == node.claim_id(claim, "gpu-2")


async def test_a_claim_that_has_it_already_keeps_it(node: AgentNode, devices: KubeletDevices) -> None:
    node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    await node.prepare("pod-1", claim)
    devices.allocate(POD, "old-school", uuid(node, 2))
    await until_true(lambda: not offered(node, "gpu-2"))
    node.kubelet.claims.claims.clear()
    try:
        assert (await node.prepare("pod-2", claim))[0] == node.claim_id(claim, "gpu-2")
    except PodError as error:
        pytest.fail(str(error))


async def test_the_checkpoints_memory_of_a_pod_that_has_ended_keeps_nothing(
    node: AgentNode, devices: KubeletDevices
) -> None:
    node.start_agent()
    await node.ready()
    devices.allocate(POD, "old-school", uuid(node, 2))
    node.pods.run(POD, 77)
    await until_true(lambda: not offered(node, "gpu-2"))
    node.pods.end(POD)
    devices.end(POD, forget=False)
    devices.write_checkpoint()
    await until_true(lambda: offered(node, "gpu-2"))


async def test_pods_of_claims_are_known_from_pod_resources(node: AgentNode, devices: KubeletDevices) -> None:
    """Even where the kubelet's other list lags behind."""
    node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    await node.prepare("pod-1", claim)
    metadata = {"name": "joined", "namespace": "default", "uid": "pod-9"}
    node.server.put(PODS, {"metadata": metadata, "spec": {"nodeName": NODE_NAME}, "status": {"phase": "Running"}})
    cdi = podresources.CDIDevice(name=node.claim_id(claim, "gpu-2"))
    resource = podresources.ClaimResource(driver_name="gpu.nvidia.com", device_name="gpu-2", cdi_devices=[cdi])
    dynamic = podresources.DynamicResource(claim_name="train", claim_namespace="default", claim_resources=[resource])
    devices.add("pod-9", "joined", podresources.ContainerResources(name="c", dynamic_resources=[dynamic]))
    devices.write_checkpoint()

    async def known() -> bool:
        entry = next(entry for entry in (await node.status())["devices"] if entry["name"] == "gpu-2")
        return "pod-9" in entry["holders"][0]["pods"]

    await until(known)
