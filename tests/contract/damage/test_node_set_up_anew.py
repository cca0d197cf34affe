"""A node set up anew under its old name: an empty disk, other GPUs, driver and toolkit that come late, and claims in
the API that are still allocated its devices by name.

A name means the GPU that has it now, unless the ledger says otherwise: the scheduler knows names only, and an
allocation to `gpu-0` of this node's pool is one to whatever this node calls so. What has no such device is refused with
the reason.
"""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from gpuclaim.demo.kubelet import PodClaim, PodError
from kubeapi.client import RESOURCE_SLICES
from tests.contract.agent.node import until, until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well

pytestmark = pytest.mark.anyio


def uuids(node: DamagedNode) -> dict[str, str]:
    return {
        device["name"]: device["attributes"]["uuid"]["string"]
        for item in node.slices()
        for device in item["spec"].get("devices", [])
    }


async def set_up_anew(node: DamagedNode, gpus: int, *, with_kubelet_state: bool) -> None:
    """All that was local is gone, the boards are others, and there are ``gpus`` of them."""
    await node.kubelet.stop()
    state = node.settings.kubelet_root_dir / "dra_manager_state"
    kept = state.read_bytes()
    shutil.rmtree(node.settings.kubelet_root_dir)
    shutil.rmtree(node.settings.cdi_dir)
    if with_kubelet_state:
        node.settings.kubelet_root_dir.mkdir()
        state.write_bytes(kept)
    machine = node.machine()
    machine.reboot()
    for slot in range(8):
        machine.replace_gpu(slot, f"GPU-{slot:08x}-aaaa-bbbb-cccc-dddddddddddd", f"serial {slot}")
    for slot in range(gpus, 8):
        machine.remove_gpu(slot)
    await node.kubelet.start()


async def old_node(node: DamagedNode) -> tuple[PodClaim, PodClaim]:
    agent = await node.ready_agent(name="old")
    claims = await node.held("low", "gpu-0"), await node.held("high", "gpu-6")
    await agent.end(signal.SIGKILL)
    return claims


@pytest.mark.parametrize("with_kubelet_state", [False, True])
async def test_it_restores_itself(node: DamagedNode, with_kubelet_state: bool) -> None:
    low, high = await old_node(node)
    before = uuids(node)
    await set_up_anew(node, 4, with_kubelet_state=with_kubelet_state)
    agent = await node.ready_agent(name="new")
    await until_true(lambda: len(node.devices()) == 4)
    after = uuids(node)
    assert list(after) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert not set(before.values()) & set(after.values())
    # The pods are started again where the API still has them, by a kubelet that has forgotten that it prepared them.
    ids = await node.prepare("pod-of-low", low)
    assert ids[0] == node.claim_id(low, "gpu-0")
    found = next(entry for entry in (await node.status())["devices"] if entry["name"] == "gpu-0")
    assert (found["uuid"], [holder["name"] for holder in found["holders"]]) == (after["gpu-0"], ["low"])
    with pytest.raises(PodError, match="device gpu-6 doesn't exist on this node"):
        await node.prepare("pod-of-high", high)
    await node.kubelet.unprepare("pod-of-high", [high])
    await node.released(low)
    await node.released(await node.held("next", "gpu-0"))
    assert_told_well(agent.output)


async def test_the_refusal_is_in_the_log(node: DamagedNode) -> None:
    _, high = await old_node(node)
    await set_up_anew(node, 4, with_kubelet_state=False)
    agent = await node.ready_agent(name="new")
    with pytest.raises(PodError, match="doesn't exist on this node"):
        await node.prepare("pod-of-high", high)
    assert_said_once(agent.output, "default/high", "device gpu-6 doesn't exist on this node")


async def test_driver_and_toolkit_come_late(node: DamagedNode) -> None:
    """Old slices don't outlive the look that knows better; a call that comes early waits for the driver."""
    low, _ = await old_node(node)
    await set_up_anew(node, 8, with_kubelet_state=False)
    machine = node.machine()
    machine.set_driver(loaded=False)
    agent = await node.agent(name="new")
    await until_true(lambda: "registered: True, active" in agent.output, seconds=40)
    preparing = asyncio.create_task(node.prepare("pod-of-low", low))

    async def waits() -> bool:
        return any("the NVIDIA driver doesn't answer" in entry["for"] for entry in (await node.status())["waiting"])

    await until(waits)
    machine.set_driver(loaded=True)
    assert (await preparing)[0] == node.claim_id(low, "gpu-0")
    await node.ready()
    assert all(uuid.endswith("dddddddddddd") for uuid in uuids(node).values())
    assert len(node.server.objects(RESOURCE_SLICES)) == 1
    driver = node.settings.cdi_dir / "k8s.gpu.nvidia.com-driver.json"
    before = driver.read_text()
    assert "nvidia-cdi-hook" not in before
    install_toolkit(node)
    await until_true(lambda: "nvidia-cdi-hook" in driver.read_text())
    await node.still_works((low, "gpu-0"))
    assert_said_once(agent.output, "go on without GPUs", "kernel module")


def install_toolkit(node: DamagedNode) -> None:
    tree = node.machine().state().tree
    assert tree is not None
    path = Path(tree.root) / "usr" / "bin" / "nvidia-cdi-hook"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
