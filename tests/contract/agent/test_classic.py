"""A GPU that another device plugin has given out isn't offered to claims, and is again once that is over."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import EVENTS, PODS
from kubeletplugin.errors import FatalError
from kubeletplugin.pb.podresources.v1 import api_pb2 as podresources
from tests.contract.agent.classic import KubeletDevices
from tests.contract.agent.node import AgentNode, HurriedClock, until, until_true

pytestmark = pytest.mark.anyio

OTHER_POD = "6f2b8d8a-52a1-4c0c-9f4d-1f2b8d8a52a2"
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


async def until_it_waits(node: AgentNode, reason: str) -> str:
    """The one claim that waits, for that reason; returns the whole of it."""

    async def waits() -> str:
        try:
            waiting = (await node.status()).get("waiting", ())
        except FatalError:  # no agent yet
            return ""
        return next((entry["for"] for entry in waiting if reason in entry["for"]), "")

    return await until(waits)


async def test_one_that_was_given_out_before_is_never_offered(node: AgentNode, devices: KubeletDevices) -> None:
    devices.allocate(POD, "old-school", f"{uuid(node, 2)}::1")
    node.pods.run(POD, 77)
    first = node.start_agent(HurriedClock())
    await node.ready()
    assert node.devices() == [f"gpu-{index}" for index in (0, 1, 3, 4, 5, 6, 7)]
    assert [item["metadata"]["generation"] for item in node.slices()] == [1]
    await until_true(lambda: notes(node, "DeviceTaken"))
    (note,) = notes(node, "DeviceTaken")
    assert "gpu-2 isn't offered" in note and "default/old-school" in note and "nvidia.com/gpu" in note
    await first.stop()
    node.start_agent(HurriedClock())
    await node.ready()
    devices.end(POD)
    await until_true(lambda: notes(node, "DeviceReturned"))
    assert notes(node, "DeviceTaken") == [note], "a restart is no news"


async def test_one_that_is_given_out_now_leaves_and_comes_back(node: AgentNode, devices: KubeletDevices) -> None:
    node.start_agent(HurriedClock())
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

    reason = await until_it_waits(node, f"gave it out as nvidia.com/gpu (to pod {POD})")
    assert "old-school" not in reason
    devices.end(POD)
    assert (await call)[0] == node.claim_id(claim, "gpu-2")


async def test_a_claim_does_not_get_what_was_given_out_a_moment_ago(node: AgentNode, devices: KubeletDevices) -> None:
    """However long the kubelet's list takes, and however soon after another Allocate."""
    node.start_agent()
    await node.ready()
    devices.answers.clear()
    devices.allocate(OTHER_POD, "other", uuid(node, 1))
    devices.allocate(POD, "old-school", uuid(node, 2))
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    call = asyncio.create_task(node.prepare("pod-1", claim))
    await until_it_waits(node, f"gave it out as nvidia.com/gpu (to pod {POD})")
    await until_true(lambda: not offered(node, "gpu-1") and not offered(node, "gpu-2"))
    assert not call.done()
    devices.answers.set()
    devices.end(POD)
    assert (await call)[0] == node.claim_id(claim, "gpu-2")


async def test_nor_is_it_given_what_was_given_out_while_no_agent_ran(node: AgentNode, devices: KubeletDevices) -> None:
    """Prepare is served as soon as the agent has taken over."""
    devices.answers.clear()
    devices.allocate(POD, "old-school", uuid(node, 2))
    claim = node.allocate("train", "gpu-2", pod="pod-1")

    async def prepare() -> list[str]:
        while True:
            try:
                return await node.prepare("pod-1", claim)
            except PodError:
                await asyncio.sleep(0.005)

    call = asyncio.create_task(prepare())
    node.start_agent()
    await until_it_waits(node, f"gave it out as nvidia.com/gpu (to pod {POD})")
    devices.answers.set()
    devices.end(POD)
    assert (await call)[0] == node.claim_id(claim, "gpu-2")


async def test_while_the_checkpoint_cannot_be_read_nothing_is_offered(node: AgentNode, devices: KubeletDevices) -> None:
    devices.write('{"Data": {"Unheard": "of"}}')
    node.start_agent()
    await until_true(lambda: notes(node, "DeviceCheckpointUnreadable"))
    (note,) = notes(node, "DeviceCheckpointUnreadable")
    assert "kubelet_internal_checkpoint" in note and "device plugin" in note
    assert node.devices() == []
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    call = asyncio.create_task(node.prepare("pod-1", claim))
    await until_it_waits(node, "what other device plugins gave out isn't known")
    devices.write_checkpoint()
    assert (await call)[0] == node.claim_id(claim, "gpu-2")
    await until_true(lambda: len(node.devices()) == 8 and notes(node, "DeviceCheckpointRead"))


async def test_a_claim_that_has_it_already_keeps_it_and_people_hear_of_both(
    node: AgentNode, devices: KubeletDevices
) -> None:
    node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-2", pod="pod-1")
    await node.prepare("pod-1", claim)
    devices.allocate(POD, "old-school", uuid(node, 2))
    await until_true(lambda: notes(node, "DeviceHeldTwice"))
    (note,) = notes(node, "DeviceHeldTwice")
    assert "device gpu-2 is held twice: claim default/train has it" in note and "default/old-school" in note
    assert not offered(node, "gpu-2")
    node.kubelet.claims.claims.clear()
    try:
        assert (await node.prepare("pod-2", claim))[0] == node.claim_id(claim, "gpu-2")
    except PodError as error:
        pytest.fail(str(error))


async def test_the_checkpoints_memory_of_a_pod_that_has_ended_keeps_nothing(
    node: AgentNode, devices: KubeletDevices
) -> None:
    node.start_agent(HurriedClock())
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
