"""A GPU or the driver in trouble: the others are served, and what was wrong is offered again when it is well."""

import asyncio

import pytest

from gpuclaim.demo.kubelet import PodError
from kubeapi.client import RESOURCE_CLAIMS
from kubeletplugin.nvml.errors import NvmlCode
from tests.contract.agent.node import until, until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well, troubles, waiting

pytestmark = pytest.mark.anyio

OTHERS = [f"gpu-{number}" for number in range(8) if number != 3]


async def test_a_gpu_whose_calls_fail(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    running = await node.held("train", "gpu-3")
    before = node.claim_files()
    node.machine().inject_fault(3, "*", NvmlCode.UNKNOWN)
    await until_true(lambda: node.devices() == OTHERS)
    await asyncio.sleep(1.5)  # three more looks
    assert node.claim_files() == before
    await node.until_holder("gpu-3", "train")
    node.machine().clear_faults(3)
    await until_true(lambda: len(node.devices()) == 8)
    await node.still_works((running, "gpu-3"))
    uuid = node.machine().state().gpus[3].uuid
    assert_said_once(agent.output, f"GPU {uuid} isn't offered")
    assert len(troubles(agent.output)) == 1


async def test_a_gpu_that_hangs(node: DamagedNode) -> None:
    agent = await node.ready_agent("--nvml-timeout=0.5")
    running = await node.held("train", "gpu-3")
    node.machine().hang(3)
    await until_true(lambda: node.devices() == OTHERS)
    other = await node.held("other", "gpu-4")
    await node.until_holder("gpu-3", "train")
    node.machine().clear_faults(3)
    await until_true(lambda: len(node.devices()) == 8)
    await node.still_works((running, "gpu-3"), (other, "gpu-4"))
    assert_told_well(agent.output)
    assert [text for text in troubles(agent.output) if "isn't offered" in text]


async def test_a_driver_that_hangs_whole(node: DamagedNode) -> None:
    """What is published stays for a while, since a driver's reload looks the same, and no claim is harmed."""
    agent = await node.ready_agent("--nvml-timeout=0.5")
    running = await node.held("train", "gpu-3")
    before = node.claim_files()
    node.machine().hang("*")
    node.machine().hang("system")
    await until_true(lambda: "look at the GPUs" in agent.output)
    await asyncio.sleep(3)
    assert len(node.devices()) == 8
    assert node.claim_files() == before
    node.machine().clear_faults()
    await until_true(lambda: "it works again" in agent.output, seconds=30)
    await node.still_works((running, "gpu-3"))
    assert_told_well(agent.output)


async def test_a_driver_that_is_unloaded_and_loaded_again(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    running = await node.held("train", "gpu-3")
    node.machine().set_driver(loaded=False)
    await until_true(lambda: "look at the GPUs" in agent.output)
    await asyncio.sleep(2)
    node.machine().set_driver(loaded=True)
    await until_true(lambda: "it works again" in agent.output, seconds=30)
    assert len(node.devices()) == 8
    await node.still_works((running, "gpu-3"))
    assert_told_well(agent.output)
    assert [text for text in troubles(agent.output) if text.startswith("look at the GPUs")]


async def test_a_gpu_that_falls_off_the_bus_in_the_middle_of_prepare(node: DamagedNode) -> None:
    """Its claim waits with the reason, and isn't answered with a device that is gone; the other is prepared."""
    agent = await node.ready_agent()
    lost = node.allocate("lost", "gpu-3", pod="pod-of-lost")
    other = node.allocate("other", "gpu-4", pod="pod-of-other")
    # Both runs stand between their first look at the claim and their commit.
    node.server.faults.delay(3.0, times=4, verb="get", resource=RESOURCE_CLAIMS.plural)
    preparing = [asyncio.create_task(node.prepare(f"pod-of-{claim.name}", claim)) for claim in (lost, other)]
    await asyncio.sleep(3.5)
    node.machine().lose_gpu(3)
    await until_true(lambda: "gpu-3" not in node.devices())
    await preparing[1]

    async def waits() -> bool:
        return any("gpu-3" in entry["for"] and "GPU is lost" in entry["for"] for entry in await waiting(node))

    await until(waits)
    await node.released(lost)  # as when its pod is deleted
    with pytest.raises(PodError):
        await preparing[0]
    assert [name for name in node.claim_files() if lost.uid in name] == []
    await node.still_works((other, "gpu-4"))
    assert_told_well(agent.output)
