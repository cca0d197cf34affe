"""When an instance asks for the lease, and what becomes of it: on a virtual clock, with one real lease file."""

import asyncio
import contextlib
import errno
import fcntl
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeletplugin.dra.instance import PeerError
from kubeletplugin.dra.takeover import State, TakeOver, TakeOverTiming
from kubeletplugin.errors import FatalError, NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.lease.record import LeaseRecord
from kubeletplugin.lease.stale import StaleDetector, StaleTiming
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


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

    async def until_gone(self, socket: str) -> None:
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
            with self._lease.held():
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


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "lease")
    yield world
    await world.close()


async def test_the_first_registration_makes_it_ask_and_only_the_first(world: World) -> None:
    one, two = world.add(1), world.add(2)
    await world.clock.advance(30)
    assert (one.state, two.state) == (State.STANDBY, State.STANDBY)
    one.takeover.registered()
    assert await world.settled(one) is State.ACTIVE
    two.takeover.registered()
    assert await world.settled(two) is State.ACTIVE
    assert one.state is State.STANDBY
    one.takeover.registered()
    await world.clock.advance(30)
    assert (one.state, two.state) == (State.STANDBY, State.ACTIVE)
    assert (one.active, two.active) == ([True, False], [True])


async def test_effects_are_finished_under_the_lease_before_it_is_given_away(world: World) -> None:
    one, two = world.add(1), world.add(2)
    await one.takeover.ask()
    await two.takeover.ask()
    assert one.work.held_while_deactivating
    assert one.lease.epoch is None
    assert two.work.epochs == [2]


async def test_a_standby_takes_over_when_the_heartbeat_stands_still(world: World) -> None:
    ghost = world.lease(9)
    await ghost.acquire(ghost.read().record)
    one = world.add(1)
    one.takeover.registered()
    assert await world.settled(one) is State.ACTIVE, "the first registration asks in any case"
    await ghost.acquire(ghost.read().record)
    world.peers.asked.clear()
    await world.clock.advance(1)
    assert one.state is State.STANDBY
    for _ in range(20):
        ghost.beat()
        await world.clock.advance(1)
    assert one.active == [True, False]
    await world.clock.advance(4)
    assert one.active == [True, False]
    await world.clock.advance(3)
    assert one.active == [True, False, True]
    assert world.peers.asked == [], "one that hangs isn't asked"


async def test_a_standby_takes_over_within_a_look_when_the_active_ones_process_is_gone(world: World) -> None:
    one, two = world.add(1), world.add(2)
    two.takeover.registered()
    await world.clock.settle()
    one.takeover.registered()
    await world.clock.settle()
    ghost = world.lease(9)
    await ghost.acquire(ghost.read().record)
    world.dead.add(9)
    await world.clock.advance(2)
    assert [one.state, two.state].count(State.ACTIVE) == 1
    assert [one.state, two.state].count(State.STANDBY) == 1


async def test_a_lease_of_before_the_reboot_is_void(world: World) -> None:
    ghost = world.lease(9, boot="boot-0")
    await ghost.acquire(ghost.read().record)
    one = world.add(1)
    await one.takeover.ask()
    assert one.state is State.ACTIVE
    assert world.peers.asked == []


async def test_one_that_doesnt_answer_is_overtaken(world: World) -> None:
    ghost = world.lease(9)
    await ghost.acquire(ghost.read().record)
    one = world.add(1)
    await one.takeover.ask()
    assert world.peers.asked == ["/dra-9.sock"]
    assert one.state is State.ACTIVE
    assert ghost.lost()


async def test_one_that_was_overtaken_steps_back_at_its_next_heartbeat(world: World) -> None:
    one = world.add(1)
    await one.takeover.ask()
    thief = world.lease(9)
    await thief.acquire(thief.read().record)
    await world.clock.advance(1)
    assert one.state is State.STANDBY
    assert one.active == [True, False]
    assert one.work.deactivations == 1
    assert not one.work.held_while_deactivating


async def test_a_passing_lock_doesnt_make_the_active_one_step_back(world: World) -> None:
    one = world.add(1)
    await one.takeover.ask()
    with locked(world.path):
        await world.clock.advance(3)
        assert one.state is State.ACTIVE
    before = one.lease.read().heartbeat
    await world.clock.advance(1)
    assert one.lease.read().heartbeat == before + 1


async def test_an_asker_that_never_takes_over_leaves_the_lease_to_be_taken_back(world: World) -> None:
    one = world.add(1)
    one.takeover.registered()
    await world.clock.settle()
    assert await one.takeover.give_up("one that dies") is True
    assert await one.takeover.give_up("one that dies") is False
    assert one.active == [True, False]
    await world.clock.advance(7)
    assert one.active == [True, False, True]
    assert one.work.epochs == [1, 2]


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (RecoverableError("open the ledger: disk full"), "open the ledger: disk full"),
        (RuntimeError("a secret"), "internal error, see the agent's log"),
        (NotActiveError("lost"), "lost"),
    ],
)
async def test_a_failed_activation_gives_back_and_tries_later(world: World, failure: Exception, shown: str) -> None:
    one = world.add(1)
    one.work.failure = failure
    one.takeover.registered()
    assert await world.settled(one) is State.STANDBY
    assert one.takeover.failure == shown
    assert one.lease.is_void(one.lease.read().record)
    assert one.active == []
    await one.takeover.ask()
    assert one.work.epochs == [1], "not again at once"
    one.work.failure = None
    await world.clock.advance(6)
    assert one.state is State.ACTIVE
    assert one.takeover.failure == ""
    assert one.shown == [""], "healed before it is told"


async def test_a_fatal_failure_is_reported(world: World) -> None:
    one = world.add(1)
    one.work.failure = FatalError("ledger of a newer version")
    await one.takeover.ask()
    assert [str(error) for error in one.fatal] == ["ledger of a newer version"]


async def test_all_askers_join_one_attempt(world: World) -> None:
    one = world.add(1)
    one.work.block = asyncio.Event()
    attempts = {one.takeover.ask() for _ in range(5)}
    await world.clock.settle()
    assert len(attempts) == 1
    assert one.state is State.ACTIVATING
    one.work.block.set()
    await attempts.pop()
    assert one.work.epochs == [1]


async def test_stop_breaks_off_an_activation_and_gives_back(world: World) -> None:
    one = world.add(1)
    one.work.block = asyncio.Event()
    one.takeover.ask()
    assert await world.settled(one) is State.ACTIVATING
    await one.takeover.stop()
    assert one.state is State.STOPPED
    assert one.work.deactivations == 1
    assert one.lease.is_void(one.lease.read().record)
    await one.takeover.ask()
    assert one.work.epochs == [1]


async def test_a_yield_goes_on_when_the_asker_has_gone(world: World) -> None:
    one = world.add(1)
    await one.takeover.ask()
    asking = asyncio.create_task(one.takeover.give_up("impatient"))
    await asyncio.sleep(0)
    asking.cancel()
    await world.clock.settle()
    assert one.state is State.STANDBY
    assert one.work.deactivations == 1


def out_of_files() -> None:
    raise OSError(errno.EMFILE, "too many open files")


async def test_a_look_that_fails_isnt_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.add(1)
    await one.takeover.ask()
    with monkeypatch.context() as patch:
        patch.setattr(one.lease, "beat", out_of_files)
        await world.clock.advance(3)
    assert any(record.exc_info for record in caplog.records), "with its stack"
    before = one.lease.read().heartbeat
    await world.clock.advance(1)
    assert one.lease.read().heartbeat == before + 1


async def test_a_take_over_that_fails_in_an_unforeseen_way_is_tried_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def acquire(seen: LeaseRecord) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    one = world.add(1)
    with monkeypatch.context() as patch:
        patch.setattr(one.lease, "acquire", acquire)
        one.takeover.registered()
        assert await world.settled(one) is State.STANDBY
        assert one.takeover.failure == "internal error, see the agent's log"
    await world.clock.advance(7)
    assert one.state is State.ACTIVE


async def test_one_that_cant_go_on_after_activating_gives_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.add(1)
    with monkeypatch.context() as patch:
        patch.setattr(one.lease, "beat", out_of_files)
        await one.takeover.ask()
    assert one.state is State.STANDBY
    assert one.work.deactivations == 1
    assert one.lease.is_void(one.lease.read().record)


async def test_one_that_cant_work_leaves_a_dead_heartbeat_alone_for_a_while(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.add(1)
    one.work.failure = RecoverableError("open the ledger: disk full")
    one.takeover.registered()
    assert await world.settled(one) is State.STANDBY
    ghost = world.lease(9)
    await ghost.acquire(ghost.read().record)
    await world.clock.advance(11)
    assert one.work.epochs == [1, 3]
    assert sum("stands still" in record.message for record in caplog.records) == 1
    await world.clock.advance(4)
    assert sum("stands still" in record.message for record in caplog.records) == 1, "no look before it may act"


async def test_each_state_is_told_when_it_has_begun(world: World) -> None:
    one = world.add(1)
    await one.takeover.ask()
    await one.takeover.give_up("another")
    await one.takeover.stop()
    assert one.states == [State.ACTIVATING, State.ACTIVE, State.YIELDING, State.STANDBY, State.STOPPED]


async def test_who_is_told_and_raises_stops_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    one = world.add(1)

    def fail(state: State) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(one.takeover, "_on_state", fail)
    await one.takeover.ask()
    assert one.state is State.ACTIVE
    assert await one.takeover.give_up("another")
    assert (one.state, one.work.deactivations) == (State.STANDBY, 1)


async def test_the_heart_beats_while_the_work_is_taken_up_and_while_it_ends(world: World) -> None:
    """Both may last longer than a standby waits for a beat."""
    one, two = world.add(1), world.add(2)
    two.takeover.registered()
    await world.clock.settle()
    one.work.block, one.work.block_end = asyncio.Event(), asyncio.Event()
    attempt = one.takeover.ask()
    await world.clock.advance(30)
    assert (one.state, two.state) == (State.ACTIVATING, State.STANDBY)
    one.work.block.set()
    await attempt
    leaving = asyncio.create_task(one.takeover.give_up("another"))
    await world.clock.advance(30)
    assert (one.state, two.state) == (State.YIELDING, State.STANDBY)
    one.work.block_end.set()
    assert await leaving


async def test_the_heart_beats_in_an_activation_that_a_look_began(world: World) -> None:
    one = world.add(1)
    one.takeover.registered()
    await world.clock.settle()
    await one.takeover.give_up("one that then dies")
    one.work.block = asyncio.Event()
    world.dead.add(1)
    await world.clock.advance(2)
    assert one.state is State.ACTIVATING
    before = one.lease.read().heartbeat
    await world.clock.advance(5)
    assert one.lease.read().heartbeat == before + 5
    one.work.block.set()


async def test_one_that_cant_work_asks_less_and_less_often_while_another_serves(world: World) -> None:
    old, new = world.add(1), world.add(2)
    old.takeover.registered()
    await world.clock.settle()
    new.work.failure = RecoverableError("open the ledger: disk full")
    new.takeover.registered()
    for _ in range(600):
        await world.clock.advance(1)
        new.takeover.ask()
    assert old.state is State.ACTIVE
    assert 5 <= len(new.work.epochs) <= 8, "after 10, 20, 40, 80, 160, 300 s"
    new.work.failure = None
    await old.takeover.stop()
    await world.clock.advance(2)
    assert new.state is State.ACTIVE, "while nobody serves it doesn't wait"


async def test_a_failure_is_logged_once_while_it_lasts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    one = world.add(1)
    one.work.failure = RecoverableError("open the ledger: disk full")
    one.takeover.registered()
    await world.clock.advance(60)
    assert len(one.work.epochs) > 5
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert told == ["take over: open the ledger: disk full"]


async def test_who_was_passed_over_is_known_until_the_next_take_over(world: World) -> None:
    one, ghost = world.add(1), world.lease(9)
    one.takeover.registered()
    await world.clock.settle()
    assert one.takeover.passed_over == ""
    await ghost.acquire(ghost.read().record)
    await world.clock.advance(10)
    assert (one.state, one.takeover.passed_over) == (State.ACTIVE, "/dra-9.sock")
    await one.takeover.give_up("another")
    await one.takeover.ask()
    assert one.takeover.passed_over == ""
