"""The lease between instances: who holds it, who takes it, and when it is void."""

# ruff: noqa: ASYNC240 - a few small files, and nothing else runs

import asyncio
import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.lease import Lease, LeaseTiming
from kubeletplugin.lease.record import LeaseRecord
from tests.fakes.clock import VirtualClock
from tests.unit.lease.leases import Instance, lock, refused

pytestmark = pytest.mark.anyio


async def test_nobody_is_active_without_a_file(path: Path) -> None:
    instance = Instance(path, 1)
    assert instance.lease.read().record == LeaseRecord()
    assert instance.lease.is_void(instance.lease.read().record)
    assert refused(instance.lease)
    assert not path.exists()


async def test_the_first_taker_is_recorded_and_may_hold(path: Path) -> None:
    one = Instance(path, 1)
    assert await one.take()
    record = one.lease.read().record
    assert record == LeaseRecord(1, "instance-1", "boot-1", "/sockets/dra-1.sock", one.identity)
    assert one.lease.epoch == 1
    assert not refused(one.lease)
    assert not one.lease.is_void(record)


async def test_a_take_over_raises_the_epoch_and_ends_the_formers_right(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    assert await two.take()
    assert two.lease.read().record.epoch == 2
    assert not refused(two.lease)
    assert refused(one.lease)
    assert one.lease.lost()
    with pytest.raises(NotActiveError):
        one.lease.beat()
    assert two.lease.read().record.previous == (one.identity,)


async def test_of_two_that_saw_the_same_only_one_takes_over(path: Path) -> None:
    one, two, three = (Instance(path, number) for number in (1, 2, 3))
    await one.take()
    seen = two.lease.read().record
    assert await two.lease.acquire(seen)
    assert not await three.lease.acquire(seen)
    assert three.lease.epoch is None
    assert not refused(two.lease)


async def test_holding_never_waits_for_a_lock_and_a_passing_lock_is_no_loss(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    other = lock(path, fcntl.LOCK_EX)
    assert refused(one.lease)
    assert not one.lease.lost()
    os.close(other)
    assert not refused(one.lease)


async def test_threads_hold_at_the_same_time(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with one.lease.fence(1).held():
            inside.set()
            leave.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(5)
    assert not refused(one.lease)
    with pytest.raises(BlockingIOError):
        lock(path, fcntl.LOCK_EX)
    leave.set()
    thread.join()
    os.close(lock(path, fcntl.LOCK_EX))


async def test_a_taker_waits_for_an_effect_that_is_under_way(path: Path) -> None:
    clock = VirtualClock()
    one, two = Instance(path, 1), Instance(path, 2, clock=clock)
    await one.take()
    with one.lease.fence(1).held():
        taking = asyncio.create_task(two.take())
        await clock.advance(0.5)
        assert not taking.done()
    await clock.advance(0.02)
    assert await taking
    assert two.processes.killed == []


async def test_heartbeats_show_and_a_new_epoch_begins_anew(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    pulses = {one.lease.read().pulse()}
    for _ in range(3):
        one.lease.beat()
        pulses.add(two.lease.read().pulse())
    assert len(pulses) == 4
    await two.take()
    assert two.lease.read().pulse() == (2, "instance-2", 0)


async def test_relinquished_is_over_at_once_though_the_file_still_says_so(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    one.lease.relinquish()
    assert refused(one.lease)
    record = two.lease.read().record
    assert record.instance == "instance-1"
    assert one.lease.is_ours(record)
    assert not two.lease.is_ours(record)


async def test_work_of_an_earlier_activation_is_refused_when_the_instance_is_active_again(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    first = one.lease.fence(1)
    with first.held():
        pass
    await two.take()
    one.lease.relinquish()
    await one.take()
    with pytest.raises(NotActiveError, match="epoch 1 is over, instance-1 holds 3"), first.held():
        pass
    with one.lease.fence(3).held():
        pass


async def test_one_that_gives_up_while_it_waits_for_the_lock_doesnt_hold(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance(path, 1)
    await one.take()
    flock = fcntl.flock

    def give_up_first(descriptor: int, operation: int) -> None:
        one.lease.relinquish()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", give_up_first)
    with pytest.raises(NotActiveError), one.lease.fence(1).held():
        pass


async def test_a_file_that_was_removed_between_opening_and_locking_isnt_taken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock and record mean nothing to anybody else."""
    one, two = Instance(path, 1), Instance(path, 2)
    flock = fcntl.flock

    def remove_first(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    assert await one.take()
    assert two.lease.read().record.instance == "instance-1"
    assert not refused(one.lease)


async def test_released_is_void_for_all_and_the_epoch_goes_on(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    one.lease.release()
    assert two.lease.is_void(two.lease.read().record)
    assert await two.take()
    assert two.lease.epoch == 2


async def test_release_leaves_anothers_lease_alone(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    await two.take()
    one.lease.release()
    assert two.lease.read().record.instance == "instance-2"


async def test_void_is_another_boots_and_a_gone_process_but_not_one_that_cant_be_seen(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    record = one.lease.read().record
    assert Instance(path, 2, boot="boot-2").lease.is_void(record)
    looker = Instance(path, 3)
    assert not looker.lease.is_void(record)
    looker.processes.invisible.add(one.identity)
    assert not looker.lease.is_void(record)
    looker.processes.invisible.clear()
    looker.processes.dead.add(one.identity)
    assert looker.lease.is_void(record)


async def test_a_restarted_container_of_the_same_pod_isnt_its_former_self(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    again = Instance(path, 1)
    again.processes.me = replace(again.identity, pid=999)
    restarted = Lease(
        path, "instance-1", "boot-1", "/s", clock=again.clock, processes=again.processes, timing=LeaseTiming()
    )
    assert not restarted.is_ours(restarted.read().record)
    assert await restarted.acquire(restarted.read().record)
    assert refused(one.lease)


async def test_the_file_keeps_its_inode_and_size(path: Path) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    await one.take()
    before = path.stat()
    one.lease.beat()
    for instance in (two, one, two):
        await instance.take()
    after = path.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
