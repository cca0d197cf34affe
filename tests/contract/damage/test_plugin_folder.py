"""Damage to the kubelet's folders that the agent lives in."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceclasses.names import DRIVER_NAME
from tests.contract.agent.node import until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well, troubles

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


async def test_the_kubelets_state_becomes_garbage(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    state = node.settings.kubelet_root_dir / "dra_manager_state"
    content = state.read_bytes()
    state.write_bytes(b"garbage")
    await until_true(lambda: f"read {state}: " in agent.output)
    state.write_bytes(content)
    await until_true(lambda: "works again" in agent.output)
    await node.still_works((claim, "gpu-1"))
    assert_said_once(agent.output, f"read {state}: ", "no claim is taken to have ended")


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
    assert_said_once(second.output, f"read {state}: ", "no claim is taken to have ended")
    state.write_bytes(content)
    await node.still_works((claim, "gpu-1"))
    assert_told_well(second.output)


def fill_with_garbage(lease: Path) -> None:
    lease.write_bytes(b"garbage")


def empty(lease: Path) -> None:
    lease.write_bytes(b"")


HARMS = [fill_with_garbage, empty, Path.unlink]


@pytest.mark.parametrize("harm", HARMS)
async def test_the_lease_is_harmed(node: DamagedNode, harm: Callable[[Path], None]) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    lease = node.settings.plugin_dir / "lease"
    harm(lease)
    await until_true(lambda: "step back" in agent.output)
    await until_true(lambda: agent.output.count('"message": "take over"') == 2)
    await node.ready()
    assert (await node.status())["epoch"] == 2
    await node.still_works((claim, "gpu-1"))
    said = [entry for text in agent.output.splitlines() if str(lease) in (entry := json.loads(text)).get("reason", "")]
    assert [(entry["message"], "removed or damaged by somebody else" in entry["reason"]) for entry in said] == [
        ("step back", True)
    ]
    assert_told_well(agent.output)


@pytest.mark.parametrize("harm", HARMS)
async def test_the_lease_is_harmed_while_no_agent_runs(node: DamagedNode, harm: Callable[[Path], None]) -> None:
    for name in ("first", "second"):
        agent = await node.ready_agent(name=name)
        await agent.end(signal.SIGTERM)
    lease = node.settings.plugin_dir / "lease"
    harm(lease)
    third = await node.ready_agent(name="third")
    assert (await node.status())["epoch"] == 3
    await node.still_works()
    assert_said_once(third.output, f"the lease file {lease} was removed or damaged", "epochs go on from 2")


async def test_the_lease_is_locked_by_a_stranger(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    lease = node.settings.plugin_dir / "lease"
    waiting = node.allocate("train", "gpu-1", pod="pod-of-train")
    with lease.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        preparing = asyncio.create_task(node.prepare("pod-of-train", waiting))
        await until_true(lambda: "locked by somebody else" in agent.output)
        assert str(lease) in str((await node.status())["ready"])
        assert not preparing.done()
    await preparing
    await node.ready()
    await node.still_works((waiting, "gpu-1"))
    (said,) = [text for text in troubles(agent.output) if "locked by somebody else" in text]
    assert str(os.getpid()) in said
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
