"""When an instance asks for the lease, and what becomes of it: on a virtual clock, with one real lease file."""

import asyncio
import contextlib
import errno
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.dra.takeover import State
from kubeletplugin.errors import FatalError, NotActiveError, RecoverableError
from kubeletplugin.lease.record import LeaseRecord
from tests.unit.dra.takeovers import World

pytestmark = pytest.mark.anyio


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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


async def test_a_lock_that_lasts_is_told_once_and_when_it_is_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = world.add(1)
    await one.takeover.ask()
    with locked(world.path):
        await world.clock.advance(2)
        assert one.takeover.blocked == ""
        await world.clock.advance(10)
        assert one.state is State.ACTIVE
        assert f"{world.path} has been locked by somebody else" in one.takeover.blocked
        assert len([record for record in caplog.records if "locked by somebody else" in record.getMessage()]) == 1
    await world.clock.advance(1)
    assert one.takeover.blocked == ""
    assert "write a heartbeat: works again" in [record.getMessage() for record in caplog.records]


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
