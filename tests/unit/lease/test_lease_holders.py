"""Ending a holder of the lease's lock who stands still."""

import fcntl
import os
from pathlib import Path

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.lease import record
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.lease.record import LeaseRecord
from tests.unit.lease.leases import HOST, Instance, lock

pytestmark = pytest.mark.anyio


class TestEndingAHolder:
    """R_KILL: whoever stands still with the lock is ended, and nobody else."""

    async def test_the_recorded_holder_is_ended_after_two_seconds(self, path: Path) -> None:
        one, two = Instance(path, 1), Instance(path, 2)
        await one.take()
        stuck = lock(path, fcntl.LOCK_SH)
        two.processes.holders = {one.identity.pid}
        two.processes.on_kill = two.processes.dying(stuck)
        started = two.clock.monotonic()
        assert await two.take()
        assert two.processes.killed == [one.identity]
        assert 2.0 <= two.clock.monotonic() - started < 2.5

    async def test_a_former_holder_stopped_while_it_looks_is_ended_not_the_active_one(self, path: Path) -> None:
        one, two, three = (Instance(path, number) for number in (1, 2, 3))
        await one.take()
        await two.take()
        stuck = lock(path, fcntl.LOCK_SH)
        three.processes.holders = {one.identity.pid}
        three.processes.on_kill = three.processes.dying(stuck)
        assert await three.take()
        assert three.processes.killed == [one.identity]

    async def test_a_rival_stopped_while_it_takes_is_ended(self, path: Path) -> None:
        one, two, three = (Instance(path, number) for number in (1, 2, 3))
        await one.take()
        await two.lease.acquire(LeaseRecord(epoch=77))
        stuck = lock(path, fcntl.LOCK_EX)
        three.processes.holders = {two.identity.pid}
        three.processes.on_kill = three.processes.dying(stuck)
        assert await three.take()
        assert three.processes.killed == [two.identity]

    async def test_a_rival_that_another_announced_over_is_still_known(self, path: Path) -> None:
        """The next one's try was broken off before it ended the rival; another's came and went."""
        one, two, three, four = (Instance(path, number) for number in (1, 2, 3, 4))
        await one.take()
        await two.lease.acquire(LeaseRecord(epoch=77))
        stuck = lock(path, fcntl.LOCK_EX)
        for instance in (three, four, three):
            instance.lease._announce()
        three.processes.holders = {two.identity.pid}
        three.processes.on_kill = three.processes.dying(stuck)
        assert await three.take()
        assert three.processes.killed == [two.identity]

    async def test_contenders_that_are_gone_arent_kept(self, path: Path) -> None:
        for number in range(1, 30):
            instance = Instance(path, number)
            instance.processes.dead = {ProcessIdentity(100 + dead, 5000 + dead, HOST) for dead in range(3, number)}
            assert await instance.take()
        descriptor = os.open(path, os.O_RDONLY)
        assert [item.pid for item in record.read_contenders(descriptor)] == [129, 102, 101]
        os.close(descriptor)

    async def test_more_contenders_than_the_file_has_room_for_push_out_the_oldest(self, path: Path) -> None:
        for number in range(1, 30):
            Instance(path, number).lease._announce()
        descriptor = os.open(path, os.O_RDONLY)
        assert [item.pid for item in record.read_contenders(descriptor)] == list(range(129, 121, -1))
        os.close(descriptor)

    async def test_a_stranger_is_named_and_left_alone(self, path: Path) -> None:
        one, two = Instance(path, 1), Instance(path, 2)
        await one.take()
        stuck = lock(path, fcntl.LOCK_SH)
        two.processes.holders = {4711}
        with pytest.raises(RecoverableError, match="locked by no known instance, holders by pid: 4711"):
            await two.take()
        assert two.processes.killed == []
        os.close(stuck)

    async def test_holders_that_cant_be_seen_point_to_the_pods_settings(self, path: Path) -> None:
        one, two = Instance(path, 1), Instance(path, 2)
        await one.take()
        stuck = lock(path, fcntl.LOCK_SH)
        with pytest.raises(RecoverableError, match="hostPID"):
            await two.take()
        os.close(stuck)

    async def test_one_that_survives_being_killed_is_waited_for_and_named(self, path: Path) -> None:
        one, two = Instance(path, 1), Instance(path, 2)
        await one.take()
        stuck = lock(path, fcntl.LOCK_SH)
        two.processes.holders = {one.identity.pid}
        two.processes.on_kill = lambda process: None
        started = two.clock.monotonic()
        with pytest.raises(RecoverableError, match=rf"doesn't end, even killed \(pid {one.identity.pid}, state D\)"):
            await two.take()
        assert two.clock.monotonic() - started >= 12.0
        assert two.lease.epoch is None
        os.close(stuck)
