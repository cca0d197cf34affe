"""Instances that hang, as real processes: stopped, blocked, or stuck in the kernel. Calls find one that is well.

What is stuck in the kernel is made by the freezer of cgroup v1: a frozen process is in state D and can't be killed.
"""

import asyncio
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuclaim.demo.kubelet import PodError
from kubeletplugin.lease.lease import LeaseTiming
from kubeletplugin.lease.watchdog import EXIT_STATUS
from tests.contract.dra.instances import Process, instance, recorded, server_of, special
from tests.contract.dra.support import DRIVER, PATIENT, Node, claim, running_node, until
from tests.contract.dra.test_takeover import call_directly

pytestmark = pytest.mark.anyio

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    """With instances that a busy machine doesn't make look stopped."""
    async with running_node(short_path, PATIENT) as running:
        yield running


def order(node: Node) -> list[str]:
    """The instances as the kubelet has them registered; the last one is called."""
    endpoints = [plugin.endpoint for plugin in node.kubelet.plugins.plugins(DRIVER)]
    return [Path(endpoint).stem.removeprefix("dra-") for endpoint in endpoints]


class Freezer:
    """As a context it thaws in time: whoever waits for the end of a frozen process waits for ever."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def __aenter__(self) -> None:
        return

    async def __aexit__(self, *_: object) -> None:
        self.thaw()

    def freeze(self, pid: int) -> None:
        """Again and again: the kernel may stay at FREEZING for ever with a process that was on its way into it."""
        (self.folder / "cgroup.procs").write_text(str(pid))
        state = self.folder / "freezer.state"
        while True:
            state.write_text("FROZEN")
            for _ in range(20):
                if state.read_text().strip() == "FROZEN":
                    return
                time.sleep(0.01)
            state.write_text("THAWED")

    def thaw(self) -> None:
        (self.folder / "freezer.state").write_text("THAWED")


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    folder = FREEZER / f"gpuclaim-test-{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of cgroup v1: {error}")
    yield Freezer(folder)
    while (folder / "cgroup.procs").read_text():
        time.sleep(0.01)  # killed, thawed and about to go
    folder.rmdir()


async def overtaken(node: Node, stopped: str, by: str) -> None:
    """The kubelet knows both, and calls the second."""
    await until(lambda: recorded(node).instance == by)
    await until(lambda: order(node) == [stopped, by] and node.kubelet.plugins.plugins(DRIVER)[-1].connected)


async def test_calls_go_to_who_took_over_from_a_stopped_one(node: Node) -> None:
    async with instance(node, "old"), instance(node, "new") as new:
        assert order(node) == ["old", "new"]
        new.send(signal.SIGSTOP)
        await overtaken(node, "new", by="old")
        assert await server_of(node, "pod-1", claim(1)) == "old"
        assert recorded(node).epoch == 3
        assert node.wiped == [None], "the kubelet was never without a connection"


async def test_one_that_wakes_lets_the_other_go_on(node: Node) -> None:
    async with instance(node, "old"), instance(node, "new") as new:
        new.send(signal.SIGSTOP)
        await overtaken(node, "new", by="old")
        new.send(signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert await server_of(node, "pod-1", claim(1)) == "old"
        assert (recorded(node).instance, recorded(node).epoch) == ("old", 3)
        assert order(node) == ["new", "old"], "nobody takes turns"
        new.send(signal.SIGSTOP)
        await asyncio.sleep(0.5)
        assert (order(node), recorded(node).epoch) == (["new", "old"], 3)


async def test_a_call_that_meets_a_stopped_one_is_served_when_it_wakes(node: Node) -> None:
    async with instance(node, "old"), instance(node, "new") as new:
        new.send(signal.SIGSTOP)
        calls = [asyncio.create_task(server_of(node, f"pod-{n}", claim(n))) for n in range(5)]
        await overtaken(node, "new", by="old")
        new.send(signal.SIGCONT)
        served = await asyncio.gather(*calls)
        assert set(served) <= {"old", "new"}
        assert recorded(node).epoch in (3, 4)
        assert await server_of(node, "pod-9", claim(9)) == "old"


async def test_each_of_two_may_hang_in_turn(node: Node) -> None:
    async with instance(node, "old") as old, instance(node, "new") as new:
        for stopped, other in ((new, "old"), (old, "new"), (new, "old")):
            stopped.send(signal.SIGSTOP)
            await overtaken(node, stopped.name, by=other)
            assert await server_of(node, f"pod-{recorded(node).epoch}", claim(recorded(node).epoch)) == other
            stopped.send(signal.SIGCONT)


async def test_the_newest_one_hangs_without_being_active(node: Node) -> None:
    """No heartbeat of it stands still: the active one asks it for a sign of life."""
    old = await node.start("old")
    async with instance(node, "new") as new:
        assert (await call_directly(old, 1)).error == ""
        assert recorded(node).instance == "old"
        new.send(signal.SIGSTOP)
        await overtaken(node, "new", by="old")
        await node.kubelet.prepare("pod-2", [claim(2)])
        assert old.handler.prepared == ["uid-1", "uid-2"]
        assert recorded(node).epoch == 3


async def test_a_standbys_loop_that_stands_still_ends_it_too(node: Node) -> None:
    """It may be the one that the kubelet calls."""
    old = await node.start("old")
    async with instance(node, "new") as new:
        assert (await call_directly(old, 1)).error == ""
        assert recorded(node).instance == "old"
        new.send(signal.SIGUSR1)
        assert await asyncio.wait_for(new.process.wait(), 20) == EXIT_STATUS
        await until(lambda: not new.connected())
        await node.kubelet.prepare("pod-2", [claim(2)])
        assert old.handler.prepared == ["uid-1", "uid-2"]


async def test_one_stuck_in_the_kernel_is_passed_over(node: Node, freezer: Freezer) -> None:
    async with instance(node, "old"), instance(node, "new") as new, freezer:
        freezer.freeze(new.process.pid)
        await overtaken(node, "new", by="old")
        assert await server_of(node, "pod-1", claim(1)) == "old"
        async with instance(node, "newer") as newer:
            assert await server_of(node, "pod-2", claim(2)) == "newer"
        await until(lambda: not newer.connected())
        freezer.thaw()
        await until(lambda: recorded(node).instance in ("old", "new"))
        assert await server_of(node, "pod-3", claim(3)) in ("old", "new")


async def test_one_stuck_in_the_kernel_inside_an_effect_is_waited_for_and_named(node: Node, freezer: Freezer) -> None:
    """Killed, but not gone: what it does could still happen. When the kernel lets go it is over."""
    old = node.make("old", lease_timing=LeaseTiming(lock_wait=0.1, kill_wait=0.5))
    async with instance(node, "stuck") as stuck, freezer:
        call = asyncio.create_task(node.kubelet.prepare("pod-1", [special("stop-in-lock")]))
        await until(stuck.stopped)
        freezer.freeze(stuck.process.pid)
        await old.plugin.start()
        await until(lambda: old.plugin.status.failure != "")
        assert f"its holder doesn't end, even killed (pid {stuck.process.pid}, state D" in old.plugin.status.failure
        assert recorded(node).instance == "stuck"
        assert not old.active
        freezer.thaw()
        assert await stuck.process.wait() == -signal.SIGKILL
        with pytest.raises(PodError):
            await call
        await until(lambda: old.active)
        await node.kubelet.prepare("pod-2", [claim(2)])
        assert old.handler.prepared == ["uid-2"]


def test_frozen_is_what_the_kernel_shows_of_a_stuck_one(freezer: Freezer) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        freezer.freeze(sleeper.pid)
        sleeper.kill()
        assert Process.state_of(sleeper.pid) == "D"
    finally:
        freezer.thaw()
        sleeper.wait()
