"""A lease file that is gone, damaged, or can't be used."""

# ruff: noqa: ASYNC240 - a few small files, and nothing else runs

import errno
import os
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.lease.record import LeaseRecord
from tests.unit.lease.leases import Instance, refused

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("told_by", ["itself", "a standby that saw it", "the ledger"])
async def test_epochs_rise_over_a_damaged_file_and_it_is_told_once(
    path: Path, told_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Instance(path, 1), Instance(path, 2)
    for _ in range(3):
        await one.take()
    if told_by == "a standby that saw it":
        two.lease.read()
    elif told_by == "the ledger":
        two.lease.know(3)
    path.write_bytes(b"garbage")
    if told_by == "itself":
        assert f"{path} was removed or damaged" in one.lease.loss()
        assert await one.take()
        assert (one.lease.epoch, caplog.messages) == (4, [])
    else:
        assert await two.take()
        assert two.lease.epoch == 4
        (said,) = caplog.messages
        assert f"{path} was removed or damaged" in said
        assert "lost the lease to instance-2, epoch 4" in one.lease.loss()


async def test_who_has_it_locked_is_named(path: Path) -> None:
    one = Instance(path, 1)
    await one.take()
    one.processes.holders = {4711, one.identity.pid}
    assert f"{path} has been locked by somebody else for seconds (holders by pid: 4711)" in one.lease.blocked()


async def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    one = Instance(tmp_path / "missing" / "lease", 1)
    with pytest.raises(RecoverableError, match=r"open the lease file .*missing/lease: No such file"):
        await one.take()


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
    with pytest.raises(FileNotFoundError), one.lease.fence(1).held():
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
