"""The lease between instances that live in one process, with processes and time made up."""

# ruff: noqa: ASYNC240 - a few small files, and nothing else runs

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease, LeaseTiming
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.lease.record import LeaseRecord
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lease"


def lock(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    return descriptor


def refused(lease: Lease) -> bool:
    try:
        with lease.held():
            return False
    except NotActiveError:
        return True


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
        with one.lease.held():
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
    with one.lease.held():
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


async def test_a_deleted_file_ends_the_lease_and_the_epoch_still_rises(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    path.unlink()
    assert refused(one.lease)
    assert one.lease.lost()
    assert await one.take()
    assert one.lease.epoch == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b"[]" * 100, b'{"epoch": "x"}', b"\xff" * 3000])
async def test_a_damaged_file_is_nobodys_and_is_taken_over(path: Path, damage: bytes) -> None:
    one = Instance(path, 1)
    await one.take()
    path.write_bytes(damage)
    assert refused(one.lease)
    assert one.lease.is_void(one.lease.read().record)
    two = Instance(path, 2)
    assert await two.take()
    assert two.lease.read().record.instance == "instance-2"
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


async def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    one = Instance(tmp_path / "missing" / "lease", 1)
    with pytest.raises(RecoverableError, match=r"open the lease file .*missing/lease: No such file"):
        await one.take()


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


async def test_a_file_that_cant_be_read_is_told_as_trouble_that_may_pass(path: Path) -> None:
    path.mkdir()
    with pytest.raises(RecoverableError, match=r"read the lease file .*: Is a directory; remove that folder"):
        Instance(path, 1).lease.read()
    with pytest.raises(RecoverableError, match=r"open the lease file .*: Is a directory; remove that folder"):
        await Instance(path, 1).lease.acquire(LeaseRecord())


@pytest.mark.parametrize("call", ["fcntl.flock", "os.pread"])
async def test_a_lease_that_cant_be_locked_or_read_isnt_held(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    one = Instance(path, 1)
    await one.take()

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(call, fail)
        with pytest.raises(NotActiveError, match=r"hold the lease: lock and read .*: Input/output error"):
            one.lease.beat()
    one.lease.beat()


async def test_an_effects_own_error_comes_out_as_it_is(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    with pytest.raises(FileNotFoundError), one.lease.held():
        os.unlink(path.with_name("gone"))


async def test_a_heartbeat_that_cant_be_written_is_trouble_and_no_loss(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Instance(path, 1)
    await one.take()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.pwrite", fail)
    with pytest.raises(RecoverableError, match=r"write the lease file .*: Input/output error"):
        one.lease.beat()
    assert not one.lease.lost()
