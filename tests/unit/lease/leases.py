"""Instances with a lease that live in one process, with processes and time made up."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.lease import Lease, LeaseTiming
from kubeletplugin.lease.processes import ProcessIdentity
from tests.fakes.clock import VirtualClock

HOST = 4026531836


class RunningClock(VirtualClock):
    """Sleeping moves the time by itself: for code that polls."""

    async def sleep(self, seconds: float) -> None:
        await self.advance(seconds)


class FakeProcesses:
    """``me`` is this process; others live until killed; ``holders`` are what the kernel would list."""

    def __init__(self, me: ProcessIdentity) -> None:
        self.me = me
        self.dead: set[ProcessIdentity] = set()
        self.invisible: set[ProcessIdentity] = set()
        self.holders: set[int] = set()
        self.killed: list[ProcessIdentity] = []
        self.on_kill: Callable[[ProcessIdentity], None] = lambda process: self.dead.add(process)

    def dying(self, descriptor: int) -> Callable[[ProcessIdentity], None]:
        """Killed, it is gone and lets go of its lock."""

        def die(process: ProcessIdentity) -> None:
            self.dead.add(process)
            os.close(descriptor)

        return die

    def current(self) -> ProcessIdentity:
        return self.me

    def gone(self, process: ProcessIdentity) -> bool | None:
        return None if process in self.invisible else process in self.dead

    def lock_holders(self, inode: int) -> frozenset[int]:
        return frozenset(self.holders)

    def kill(self, process: ProcessIdentity) -> None:
        self.killed.append(process)
        self.on_kill(process)

    def describe(self, process: ProcessIdentity) -> str:
        return f"pid {process.pid}, state D"


class Instance:
    def __init__(self, path: Path, number: int, *, boot: str = "boot-1", clock: VirtualClock | None = None) -> None:
        self.identity = ProcessIdentity(100 + number, 5000 + number, HOST)
        self.processes = FakeProcesses(self.identity)
        self.clock = clock or RunningClock()
        self.lease = Lease(
            path,
            f"instance-{number}",
            boot,
            f"/sockets/dra-{number}.sock",
            clock=self.clock,
            processes=self.processes,
            timing=LeaseTiming(lock_wait=2.0, kill_wait=10.0, lock_poll=0.01),
        )

    async def take(self) -> bool:
        return await self.lease.acquire(self.lease.read().record)


def lock(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    return descriptor


def refused(lease: Lease) -> bool:
    try:
        with lease.fence(lease.epoch or 0).held():
            return False
    except NotActiveError:
        return True
