"""What others see of an instance's take-overs: its states, its heartbeat, its failures, whom it passed over."""

import asyncio

import pytest

from kubeletplugin.dra.takeover import State
from kubeletplugin.errors import RecoverableError
from tests.unit.dra.takeovers import World

pytestmark = pytest.mark.anyio


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
