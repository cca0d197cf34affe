"""Damage to the kubelet's folders that the agent lives in."""

import shutil
import signal

import pytest

from deviceclasses.names import DRIVER_NAME
from tests.contract.agent.node import until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well

pytestmark = pytest.mark.anyio


async def test_the_plugin_folder_is_gone(node: DamagedNode) -> None:
    """Sockets can't be bound anew by the same server: the agent ends with a reason, and the next one, which finds no
    ledger, knows what is held from the kubelet."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    names = node.claim_files().keys()
    shutil.rmtree(node.settings.plugin_dir)
    await until_true(lambda: first.ended)
    assert_said_once(first.output, str(node.settings.plugin_dir), "was removed by somebody else")
    second = await node.ready_agent(name="second")
    assert node.claim_files().keys() == names
    await node.still_works((claim, "gpu-1"))
    assert_said_once(second.output, "take in claim default/train", "gpu-1")


async def test_the_registration_socket_is_gone(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    for path in node.settings.registry_dir.glob("*.sock"):
        path.unlink()
    await until_true(lambda: "registration socket is gone" in agent.output)
    await until_true(lambda: list(node.settings.registry_dir.glob("*.sock")))
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    await node.still_works((claim, "gpu-1"))
    assert_said_once(agent.output, "registration socket is gone")


async def test_the_registry_folder_is_gone_and_comes_back(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    shutil.rmtree(node.settings.registry_dir)
    await until_true(lambda: "publish the registration socket" in agent.output)
    node.settings.registry_dir.mkdir()
    await until_true(lambda: list(node.settings.registry_dir.glob("*.sock")))
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    await node.still_works((claim, "gpu-1"))
    assert_told_well(agent.output)


async def test_the_kubelets_state_is_garbage(node: DamagedNode) -> None:
    """It may list any claim, so nothing is ended for it and nothing is given anew that might be in use."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    await first.end(signal.SIGKILL)
    state = node.settings.kubelet_root_dir / "dra_manager_state"
    content = state.read_bytes()
    state.write_bytes(b"garbage")
    second = await node.ready_agent(name="second")
    assert await node.holders("gpu-1") == ["train"]
    assert node.claim_files()
    state.write_bytes(content)
    await node.still_works((claim, "gpu-1"))
    assert_told_well(second.output)


async def test_the_lease_is_garbage(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    (node.settings.plugin_dir / "lease").write_bytes(b"garbage")
    await until_true(lambda: "step back" in agent.output)
    await until_true(lambda: agent.output.count('"message": "take over"') == 2)
    await node.ready()
    await node.still_works((claim, "gpu-1"))
    assert_told_well(agent.output)


async def test_a_folder_in_the_leases_place(node: DamagedNode) -> None:
    lease = node.settings.plugin_dir / "lease"
    lease.mkdir(parents=True)
    agent = await node.agent()
    await until_true(lambda: str(lease) in agent.output)
    lease.rmdir()
    await node.ready()
    await node.still_works()
    assert_said_once(agent.output, str(lease), "Is a directory", "remove that folder")
