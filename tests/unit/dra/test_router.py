"""Where a call is served while the active instance changes, on a virtual clock, with one real lease file."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeletplugin.dra.calls import CallRunner
from kubeletplugin.dra.instance import PeerError
from kubeletplugin.dra.router import FreshHandler, RelayedHandler
from kubeletplugin.dra.takeover import State
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.record import LeaseRecord
from kubeletplugin.prepare.model import ClaimHandler, ClaimRef, PrepareResult
from tests.unit.dra.takeovers import Instance, Peers, World

pytestmark = pytest.mark.anyio

CLAIM = ClaimRef("uid-1", "default", "claim-1")
HERE = PrepareResult(error="served here")
THERE = PrepareResult(error="served there")


class Handler:
    """``act`` is what a call meets before it is answered."""

    def __init__(self) -> None:
        self.calls = 0
        self.act: Callable[[], None] = lambda: None

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        self.calls += 1
        self.act()
        return {claim.uid: HERE for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        self.calls += 1
        self.act()
        return {claim.uid: "" for claim in claims}


class Relays(Peers):
    """``answer`` waits for ``ready``; ``failure`` is raised instead."""

    def __init__(self) -> None:
        super().__init__()
        self.relayed: list[str] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.failure: PeerError | None = None
        self.alive = True

    async def responds(self, socket: str, timeout: float) -> bool:
        return self.alive

    async def prepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, PrepareResult]:
        self.relayed.append(socket)
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        return {claim.uid: THERE for claim in claims}

    async def unprepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, str]:
        self.relayed.append(socket)
        return {claim.uid: "" for claim in claims}


@dataclass
class Rig:
    world: World
    peers: Relays
    one: Instance
    ghost: Lease
    handler: Handler = field(default_factory=Handler)

    def __post_init__(self) -> None:
        clock = self.world.clock
        self.fresh = FreshHandler(self.handler, self.one.takeover, self.one.lease, self.peers, clock)
        self.relayed = RelayedHandler(self.handler, self.one.takeover, clock)
        self.runner = CallRunner(clock)

    @property
    def deadline(self) -> float:
        return self.world.clock.monotonic() + 40

    def prepare(self) -> "asyncio.Task[Mapping[str, PrepareResult]]":
        return asyncio.ensure_future(self.fresh.prepare([CLAIM], self.deadline))

    def called(self, handler: ClaimHandler) -> "asyncio.Task[dict[str, PrepareResult]]":
        """By a caller who may go: cancel it."""
        return asyncio.ensure_future(
            self.runner.run(handler.prepare, [CLAIM], 40, lambda error: PrepareResult(error=error))
        )

    async def ghost_takes_it(self) -> None:
        assert await self.ghost.acquire(self.ghost.read().record)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    world = World(tmp_path / "lease")
    world.peers = peers = Relays()
    yield Rig(world, peers, world.add(1), world.lease(9))
    await world.close()


async def never_acquire(seen: LeaseRecord) -> bool:
    return False


def fail_with(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


async def test_what_the_active_ones_handler_says_is_the_answer(rig: Rig) -> None:
    rig.handler.act = fail_with(RecoverableError("read the ledger: I/O error"))
    told = "the GPU agent can't serve claims now: read the ledger: I/O error"
    call = rig.prepare()
    await rig.world.clock.settle()
    assert call.done()
    assert (await call)["uid-1"].error == told
    assert await rig.fresh.unprepare([CLAIM], rig.deadline) == {"uid-1": told}
    assert rig.handler.calls == 2, "each once"


async def test_a_handlers_error_while_the_lease_goes_away_is_passed_on(rig: Rig) -> None:
    await rig.one.takeover.ask()
    await rig.ghost_takes_it()
    handing_over: list[asyncio.Task[bool]] = []

    async def prepare(claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        handing_over.append(asyncio.create_task(rig.one.takeover.give_up("ghost")))
        await handing_over[0]
        raise RecoverableError("read the ledger: it is closed")

    rig.handler.prepare = prepare  # type: ignore[method-assign]
    call = rig.prepare()
    await rig.world.clock.advance(0.1)
    assert (await call)["uid-1"] == THERE


async def test_what_stood_in_the_way_at_last_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.one.lease, "acquire", never_acquire)
    await rig.ghost_takes_it()
    rig.peers.failure = PeerError("call the instance at /dra-9.sock: UNAVAILABLE")
    call = rig.prepare()
    await rig.world.clock.advance(41)
    assert (await call)["uid-1"].error == (
        "the GPU agent can't serve claims now: the instances of the agent didn't agree in time who serves; at last: "
        "call the instance at /dra-9.sock: UNAVAILABLE"
    )


async def test_one_that_was_overtaken_passes_on_before_its_next_heartbeat(rig: Rig) -> None:
    await rig.one.takeover.ask()
    await rig.ghost_takes_it()
    rig.handler.act = fail_with(NotActiveError("hold the lease: epoch 1 is over"))
    call = rig.prepare()
    await rig.world.clock.advance(0.1)
    assert rig.one.state is State.STANDBY
    assert call.done()
    assert (await call)["uid-1"] == THERE
    assert rig.handler.calls == 1


async def test_an_unreadable_lease_ends_no_call(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.one.takeover.ask()
    await rig.ghost_takes_it()
    rig.handler.act = fail_with(NotActiveError("hold the lease: open it: too many open files"))

    def unreadable() -> None:
        raise RecoverableError("read the lease file: too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(rig.one.lease, "read", unreadable)
        call = rig.prepare()
        await rig.world.clock.advance(0.1)
        assert not call.done()
    await rig.world.clock.advance(0.1)
    assert (await call)["uid-1"] == THERE


async def test_a_call_at_one_that_hangs_is_served_here_once_this_one_is_active(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.ghost_takes_it()
    rig.peers.ready.clear()
    with monkeypatch.context() as patch:
        patch.setattr(rig.one.lease, "acquire", never_acquire)
        call = rig.prepare()
        await rig.world.clock.advance(0.1)
    assert rig.peers.relayed == ["/dra-9.sock"]
    assert not call.done()
    await rig.one.takeover.ask()
    await rig.world.clock.advance(0.1)
    assert call.done()
    assert (await call)["uid-1"] == HERE


async def test_a_relayed_call_waits_until_this_one_has_activated(rig: Rig) -> None:
    rig.one.work.block = asyncio.Event()
    attempt = rig.one.takeover.ask()
    await rig.world.clock.settle()
    prepare = asyncio.ensure_future(rig.relayed.prepare([CLAIM], rig.deadline))
    unprepare = asyncio.ensure_future(rig.relayed.unprepare([CLAIM], rig.deadline))
    await rig.world.clock.settle()
    assert rig.handler.calls == 0
    rig.one.work.block.set()
    await attempt
    assert await prepare == {"uid-1": HERE}
    assert await unprepare == {"uid-1": ""}


async def test_a_relayed_call_is_sent_back_by_one_that_isnt_active(rig: Rig) -> None:
    with pytest.raises(NotActiveError):
        await rig.relayed.prepare([CLAIM], rig.deadline)
    with pytest.raises(NotActiveError):
        await rig.relayed.unprepare([CLAIM], rig.deadline)
    assert rig.handler.calls == 0
    assert rig.one.state is State.STANDBY


async def gone(call: "asyncio.Task[dict[str, PrepareResult]]") -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def overtaken_in_a_call(rig: Rig) -> "tuple[asyncio.Task[dict[str, PrepareResult]], asyncio.Event]":
    """The call is at work here, and meets the lost lease when the event is set."""
    await rig.one.takeover.ask()
    begun, woken = asyncio.Event(), asyncio.Event()

    async def prepare(claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        rig.handler.calls += 1
        begun.set()
        await woken.wait()
        raise NotActiveError("hold the lease: epoch 1 is over")

    rig.handler.prepare = prepare  # type: ignore[method-assign]
    call = rig.called(rig.fresh)
    await begun.wait()
    await rig.ghost_takes_it()
    return call, woken


async def test_a_call_whose_caller_has_gone_is_passed_on_to_nobody(rig: Rig) -> None:
    call, woken = await overtaken_in_a_call(rig)
    await gone(call)
    woken.set()
    await rig.world.clock.advance(1)
    assert rig.one.state is State.STANDBY
    assert rig.peers.relayed == []
    assert await rig.runner.drain(0), "nor is it tried for ever"


async def test_a_call_whose_caller_waits_is_passed_on(rig: Rig) -> None:
    call, woken = await overtaken_in_a_call(rig)
    woken.set()
    await rig.world.clock.advance(1)
    assert await call == {"uid-1": THERE}


async def test_that_the_caller_has_gone_is_heard_on_the_way_to_the_active_one(rig: Rig) -> None:
    """One that stood still reads of it together with the other one's sign of life."""
    call, woken = await overtaken_in_a_call(rig)

    async def responds(socket: str, timeout: float) -> bool:
        call.cancel()
        await asyncio.wait({call})
        return True

    rig.peers.responds = responds  # type: ignore[method-assign]
    woken.set()
    await rig.world.clock.advance(1)
    assert call.cancelled()
    assert rig.peers.relayed == []
    assert await rig.runner.drain(0)


async def test_a_call_isnt_passed_on_to_one_that_gives_no_sign_of_life(rig: Rig) -> None:
    call, woken = await overtaken_in_a_call(rig)
    rig.peers.alive = False
    woken.set()
    await rig.world.clock.advance(1)
    assert rig.peers.relayed == []
    rig.peers.alive = True
    await rig.world.clock.advance(1)
    assert await call == {"uid-1": THERE}


async def test_a_call_whose_caller_has_gone_isnt_begun_anew_here(rig: Rig) -> None:
    call, woken = await overtaken_in_a_call(rig)
    await gone(call)
    assert await rig.one.lease.acquire(rig.ghost.read().record)
    woken.set()
    await rig.one.takeover.ask()
    await rig.world.clock.advance(1)
    assert rig.handler.calls == 1


async def test_a_relay_ends_with_its_caller(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.one.lease, "acquire", never_acquire)
    await rig.ghost_takes_it()
    rig.peers.ready.clear()
    call = rig.called(rig.fresh)
    await rig.world.clock.advance(0.1)
    await gone(call)
    await rig.world.clock.advance(0.1)
    assert rig.peers.relayed == ["/dra-9.sock"]
    assert await rig.runner.drain(0)


async def test_a_relayed_call_whose_caller_has_gone_isnt_begun(rig: Rig) -> None:
    rig.one.work.block = asyncio.Event()
    attempt = rig.one.takeover.ask()
    await rig.world.clock.settle()
    call = rig.called(rig.relayed)
    await rig.world.clock.settle()
    await gone(call)
    rig.one.work.block.set()
    await attempt
    await rig.world.clock.settle()
    assert rig.handler.calls == 0


async def test_work_that_has_begun_is_finished_for_a_caller_who_has_gone(rig: Rig) -> None:
    await rig.one.takeover.ask()
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def prepare(claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        begun.set()
        await go_on.wait()
        done.set()
        return {"uid-1": HERE}

    rig.handler.prepare = prepare  # type: ignore[method-assign]
    call = rig.called(rig.fresh)
    await begun.wait()
    await gone(call)
    go_on.set()
    await rig.world.clock.settle()
    assert done.is_set()
