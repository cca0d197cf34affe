"""Instances' take-overs on a virtual clock, with one real lease file; the rest of each instance is made up."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.dra.instance import PeerError
from kubeletplugin.dra.takeover import State, TakeOver, TakeOverTiming
from kubeletplugin.errors import FatalError, NotActiveError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.lease.stale import StaleDetector, StaleTiming
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.fakes.clock import VirtualClock


class Processes:
    """All live, but for those named dead."""

    def __init__(self, me: int, dead: set[int]) -> None:
        self._me = me
        self._dead = dead

    def current(self) -> ProcessIdentity:
        return ProcessIdentity(self._me, 1, 1)

    def gone(self, process: ProcessIdentity) -> bool | None:
        return process.pid in self._dead

    def lock_holders(self, inode: int) -> frozenset[int]:
        return frozenset()

    def kill(self, process: ProcessIdentity) -> None:
        raise AssertionError("nobody is to be killed here")

    def describe(self, process: ProcessIdentity) -> str:
        raise AssertionError("nobody is to be killed here")


class Peers:
    """The other instances by socket; one that isn't there doesn't answer."""

    def __init__(self) -> None:
        self.instances: dict[str, TakeOver] = {}
        self.asked: list[str] = []

    async def ask_to_yield(self, socket: str, timeout: float) -> bool:
        self.asked.append(socket)
        if socket not in self.instances:
            raise PeerError(f"call the instance at {socket}: UNAVAILABLE")
        return await self.instances[socket].give_up("the test")

    async def prepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, PrepareResult]:
        raise AssertionError("no calls here")

    async def unprepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, str]:
        raise AssertionError("no calls here")

    async def until_gone(self, socket: str) -> bool:
        raise AssertionError("no watches here")

    async def responds(self, socket: str, timeout: float) -> bool:
        raise AssertionError("nobody is asked for a sign of life here")

    async def register_anew(self, socket: str, timeout: float) -> bool:
        raise AssertionError("nobody ends here")


class Work:
    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.epochs: list[int] = []
        self.deactivations = 0
        self.failure: Exception | None = None
        self.block: asyncio.Event | None = None
        self.block_end: asyncio.Event | None = None
        self.held_while_deactivating = False

    async def activate(self, epoch: int) -> None:
        self.epochs.append(epoch)
        if self.block is not None:
            await self.block.wait()
        if self.failure is not None:
            raise self.failure

    async def deactivate(self) -> None:
        self.deactivations += 1
        try:
            with self._lease.fence(self._lease.epoch or 0).held():
                self.held_while_deactivating = True
        except NotActiveError:
            self.held_while_deactivating = False
        if self.block_end is not None:
            await self.block_end.wait()


@dataclass
class Instance:
    lease: Lease
    work: Work
    takeover: TakeOver
    active: list[bool] = field(default_factory=list)
    fatal: list[FatalError] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """What was told as the failure at each change of being active."""

    @property
    def state(self) -> State:
        return self.takeover.state


class World:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = VirtualClock()
        self.peers = Peers()
        self.dead: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._works: list[Work] = []

    def lease(self, number: int, boot: str = "boot-1") -> Lease:
        return Lease(
            self.path,
            f"instance-{number}",
            boot,
            f"/dra-{number}.sock",
            clock=self.clock,
            processes=Processes(number, self.dead),
        )

    def add(self, number: int, boot: str = "boot-1") -> Instance:
        lease = self.lease(number, boot)
        work = Work(lease)
        self._works.append(work)
        active: list[bool] = []
        fatal: list[FatalError] = []
        shown: list[str] = []
        states: list[State] = []

        def on_state(state: State) -> None:
            states.append(state)
            now = state is State.ACTIVE
            if now != (active[-1] if active else False):
                active.append(now)
                shown.append(takeover.failure)

        takeover = TakeOver(
            lease,
            work,
            self.peers,
            StaleDetector(self.clock, StaleTiming(looks=6, interval=1.0, pause=3.0)),
            clock=self.clock,
            on_state=on_state,
            on_fatal=fatal.append,
            timing=TakeOverTiming(look=1.0, yield_bound=10.0, retry_after=5.0),
        )
        self.peers.instances[lease.socket] = takeover
        self._tasks.append(asyncio.create_task(takeover.run()))
        return Instance(lease, work, takeover, active, fatal, states, shown)

    async def settled(self, instance: Instance) -> State:
        await self.clock.settle()
        return instance.state

    async def close(self) -> None:
        for work in self._works:
            for block in (work.block, work.block_end):
                if block is not None:
                    block.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
