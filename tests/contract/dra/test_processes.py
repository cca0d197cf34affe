"""Instances as real processes: what the others and the kubelet see when one dies, stops or hangs."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuclaim.demo.kubelet import PodClaim, PodError
from kubeletplugin.dra.sockets import plugin_dir
from kubeletplugin.lease.record import LeaseRecord, parse_record
from kubeletplugin.lease.watchdog import EXIT_STATUS
from tests.contract.dra.support import DRIVER, Node, claim, until

pytestmark = pytest.mark.anyio

REPOSITORY = Path(__file__).parents[3]


class Process:
    def __init__(self, node: Node, name: str, process: asyncio.subprocess.Process) -> None:
        self._node = node
        self.name = name
        self.process = process

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stopped(self) -> bool:
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def connected(self) -> bool:
        plugins = self._node.kubelet.plugins.plugins(DRIVER)
        return any(self.name in plugin.endpoint and plugin.connected for plugin in plugins)


@asynccontextmanager
async def instance(node: Node, name: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contract.dra.process", str(node.root), name, cwd=REPOSITORY
    )
    wrapped = Process(node, name, process)
    try:
        await until(lambda: wrapped.connected() and recorded(node).instance == name)
        yield wrapped
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def recorded(node: Node) -> LeaseRecord:
    path = plugin_dir(node.root, DRIVER) / "lease"
    return parse_record(path.read_bytes()[:2048]) if path.exists() else LeaseRecord()


def special(name: str) -> PodClaim:
    return PodClaim(f"uid-{name}", "default", name, (DRIVER,))


async def server_of(node: Node, pod: str, wanted: PodClaim) -> str:
    """The name of the instance that prepared the claim."""
    await node.kubelet.prepare(pod, [wanted])
    (device,) = node.kubelet.claims.claims[wanted.namespace, wanted.name].drivers[DRIVER]
    return str(device.pool_name)


async def test_calls_go_on_after_the_active_instance_is_killed(node: Node) -> None:
    async with instance(node, "old") as old, instance(node, "new") as new:
        assert await server_of(node, "pod-1", claim(1)) == "new"
        new.send(signal.SIGKILL)
        await new.process.wait()
        await until(lambda: not new.connected())
        assert await server_of(node, "pod-2", claim(2)) == "old"
        assert recorded(node).process is not None
        assert recorded(node).epoch == 3
        assert old.process.returncode is None
        await until(lambda: len(list((plugin_dir(node.root, DRIVER)).glob("dra-*.sock"))) == 1)


async def test_a_call_waiting_in_another_process_is_relayed(node: Node) -> None:
    async with instance(node, "old"):
        call = asyncio.create_task(server_of(node, "pod-1", special("wait-at-old")))
        async with instance(node, "new"):
            assert await call == "new"
            assert recorded(node).epoch == 2


async def test_an_instance_stopped_with_the_lease_locked_is_killed_and_replaced(node: Node) -> None:
    """R_KILL, with a real SIGSTOP inside the real lock."""
    async with instance(node, "old") as old:
        call = asyncio.create_task(node.kubelet.prepare("pod-1", [special("stop-in-lock")]))
        await until(old.stopped)
        async with instance(node, "new"):
            assert await old.process.wait() == -signal.SIGKILL
            with pytest.raises(PodError, match=r"Unavailable|Unknown|Canceled"):
                await call
            assert await server_of(node, "pod-2", claim(2)) == "new"


async def test_a_stopped_instance_that_holds_no_lock_is_overtaken_and_steps_back_when_woken(node: Node) -> None:
    async with instance(node, "old") as old, instance(node, "new") as new:
        new.send(signal.SIGSTOP)
        await until(lambda: recorded(node).instance == "old")
        assert recorded(node).epoch == 3
        new.send(signal.SIGCONT)
        assert await server_of(node, "pod-1", claim(1)) == "new"
        assert recorded(node).epoch == 4
        assert old.process.returncode is None


async def test_a_blocked_event_loop_ends_the_process_and_the_standby_serves(node: Node) -> None:
    async with instance(node, "old"), instance(node, "new") as new:
        with pytest.raises(PodError):
            await node.kubelet.prepare("pod-1", [special("block-loop")])
        assert await new.process.wait() == EXIT_STATUS
        await until(lambda: not new.connected())
        assert await server_of(node, "pod-2", claim(2)) == "old"


async def test_sigterm_leaves_no_sockets_and_no_holder(node: Node) -> None:
    async with instance(node, "a") as process:
        await node.kubelet.prepare("pod-1", [claim(1)])
        process.send(signal.SIGTERM)
        assert await process.process.wait() == 0
    assert list(node.root.rglob("*.sock")) == []
    assert recorded(node).instance == ""
