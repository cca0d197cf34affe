"""The ledger's file harmed by others while it is open."""

import asyncio
import datetime
import itertools
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.ledger import files
from kubeletplugin.ledger.errors import LedgerDamagedError, LedgerIOError
from kubeletplugin.ledger.model import Drain
from kubeletplugin.ledger.store import Ledger
from tests.fakes.fence import AlwaysHeld
from tests.unit.ledger.ledgers import Killed, die_before_change
from tests.unit.ledger.rows import gpu, record

pytestmark = pytest.mark.anyio


class Told:
    def __init__(self) -> None:
        self.rescued: list[str] = []
        self.damaged: list[str] = []

    def ledger_rescued(self, note: str) -> None:
        self.rescued.append(note)

    def ledger_damaged(self, problem: str) -> None:
        self.damaged.append(problem)


async def opened(path: Path, told: Told) -> Ledger:
    return await Ledger.open(path, fence=AlwaysHeld(), boot_id="boot-1", observer=told)


def remove(path: Path) -> None:
    path.unlink()


def remove_with_log(path: Path) -> None:
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (path.parent / name).unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    sqlite3.connect(other).close()
    other.write_bytes(b"somebody's")
    other.rename(path)


def move_away(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def empty_log(path: Path) -> None:
    empty(path.with_name("ledger.db-wal"))


def shorten_log(path: Path) -> None:
    log = path.with_name("ledger.db-wal")
    os.truncate(log, log.stat().st_size - 1)


def fill_log_with_garbage(path: Path) -> None:
    fill_with_garbage(path.with_name("ledger.db-wal"))


def remove_log(path: Path) -> None:
    path.with_name("ledger.db-wal").unlink()


HARMS = [
    remove,
    remove_with_log,
    replace,
    move_away,
    empty,
    fill_with_garbage,
    empty_log,
    shorten_log,
    fill_log_with_garbage,
    remove_log,
]


@pytest.mark.parametrize("harm", HARMS)
async def test_what_is_open_is_written_anew(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    await ledger.commit_claim(record("a", pods=frozenset({"p"})), [gpu(0)])
    harm(path)
    await ledger.commit_claim(record("b"), [gpu(1)])
    # As another process finds it while this one lives, so as one does that comes after a kill.
    assert [claim.uid for claim in files.read_snapshot(path).claims] == ["a", "b"]
    assert path.with_name("ledger.db-wal").exists()
    assert len(told.rescued) == 1
    assert str(path) in told.rescued[0]
    await ledger.check()
    await ledger.close()
    assert len(told.rescued) == 1
    again = await opened(path, told)
    assert {claim.uid for claim in await again.claims()} == {"a", "b"}
    assert len(told.rescued) == 1
    await again.close()


@pytest.mark.parametrize(
    ("harm", "step"),
    [*itertools.product([replace, touch], [3, 4, 5, 6]), *((remove_with_log, step) for step in (3, 4, 5))],
)
async def test_one_killed_while_it_writes_anew_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], step: int
) -> None:
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    await ledger.set_bindings({"gpu-0": "GPU-0"})
    await ledger.commit_claim(record("a"), [gpu(0)])
    await ledger.end_claim("a", [Drain(gpu(0), frozenset({"p"}), "1 process")], datetime.datetime.now(datetime.UTC))
    harm(path)
    with monkeypatch.context() as patch:
        die_before_change(patch, step)
        with pytest.raises(Killed):
            await ledger.commit_claim(record("b"), [gpu(1)])
    again = await opened(path, told)
    assert [hold.pods for hold in await again.draining()] == [frozenset({"p"})]
    assert await again.bindings() == {"gpu-0": "GPU-0"}
    assert await again.commit_claim(record("b"), [gpu(1)]) == ()
    await again.close()
    assert not path.with_name("ledger.db.rescued").exists()


async def test_what_was_written_anew_takes_its_place_once_it_can(tmp_path: Path) -> None:
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    await ledger.commit_claim(record("a"), [gpu(0)])
    touch(path)
    kept = tmp_path / "ledger.db.replaced"
    (kept / "in the way").mkdir(parents=True)
    with pytest.raises(LedgerDamagedError, match=r"put the ledger .*ledger.db.rescued in its place: Is a directory"):
        await ledger.commit_claim(record("b"), [gpu(1)])
    with pytest.raises(LedgerIOError, match="in its place"):
        await opened(path, told)
    kept.rename(tmp_path / "elsewhere")
    again = await opened(path, told)
    assert [claim.uid for claim in await again.claims()] == ["a"]
    await again.close()


async def test_the_connection_to_the_harmed_file_has_ended(tmp_path: Path) -> None:
    """Whenever it ended later, it would remove the new file's log."""
    ledger = await opened(tmp_path / "ledger.db", Told())
    before = ledger._connection
    touch(tmp_path / "ledger.db")
    await ledger.check()
    assert ledger._connection is not before
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        await asyncio.get_running_loop().run_in_executor(ledger._executor, before.execute, "SELECT 1")
    await ledger.close()


async def test_nothing_is_written_anew_after_ones_own_checkpoint(tmp_path: Path) -> None:
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    size = path.stat().st_size
    for number in range(400):
        await ledger.set_verdict(f"GPU-{number}", {"why": "x" * 5000})
    assert path.stat().st_size > size
    await ledger.check()
    assert told.rescued == []
    await ledger.close()


async def test_a_file_that_lost_what_only_it_had_is_damaged(tmp_path: Path) -> None:
    path, told = tmp_path / "ledger.db", Told()
    await (await opened(path, told)).close()
    ledger = await opened(path, told)
    os.truncate(path, 5000)
    with pytest.raises(LedgerDamagedError, match=f"check the ledger {path}, to which somebody else wrote"):
        await ledger.commit_claim(record("a"), [gpu(0)])
    assert len(told.damaged) == 1
    assert told.rescued == []
    await ledger.close()


@pytest.mark.parametrize("harm", [fill_with_garbage, empty_log, fill_log_with_garbage])
async def test_of_an_older_ledger_nothing_is_lost_either(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path, told = tmp_path / "ledger.db", Told()
    first = await opened(path, told)
    await first.commit_claim(record("a"), [gpu(0)])
    await first.close()
    ledger = await opened(path, told)
    await ledger.set_verdict("GPU-1", {"why": "x"})
    harm(path)
    await ledger.check()
    assert len(told.rescued) == 1
    assert [claim.uid for claim in files.read_snapshot(path).claims] == ["a"]
    await ledger.close()


async def test_a_log_that_lost_what_only_it_had_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite hasn't all of it in memory."""
    monkeypatch.setattr(files, "CACHE_KIBIBYTES", 1)
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    await ledger.commit_claim(record("a"), [gpu(0)])
    empty_log(path)
    with pytest.raises(LedgerDamagedError, match="to which somebody else wrote"):
        await ledger.check()
    assert (told.rescued, len(told.damaged)) == ([], 1)


@pytest.mark.parametrize("left", [b"", None])
async def test_a_log_without_its_file_is_damage(tmp_path: Path, left: bytes | None) -> None:
    """SQLite would delete the log in silence."""
    path = tmp_path / "ledger.db"
    path.with_name("ledger.db-wal").write_bytes(b"what was committed")
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(LedgerDamagedError, match=f"open the ledger {path}: it is empty or gone"):
        await opened(path, Told())
    assert files.check_usable(path) == 0
    if left is not None:
        with pytest.raises(LedgerDamagedError, match=f"read the ledger {path}: it is empty or gone"):
            files.read_snapshot(path)
    assert path.with_name("ledger.db-wal").read_bytes() == b"what was committed"


async def test_a_ledger_tells_whether_it_was_begun_by_the_opening_and_keeps_the_highest_epoch(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    assert files.check_usable(path) == 0
    for epoch, is_new, last in ((3, True, 3), (2, False, 3), (4, False, 4)):
        ledger = await Ledger.open(path, fence=AlwaysHeld(), boot_id="boot-1", epoch=epoch)
        assert ledger.is_new is is_new
        await ledger.close()
        assert files.check_usable(path) == last


async def test_a_file_that_cant_be_written_anew_yet_is_tried_again(tmp_path: Path) -> None:
    path, told = tmp_path / "ledger.db", Told()
    ledger = await opened(path, told)
    await ledger.commit_claim(record("a"), [gpu(0)])
    path.unlink()
    in_the_way = tmp_path / "ledger.db.new"
    in_the_way.mkdir()
    with pytest.raises(LedgerIOError, match=f"write the ledger {path} anew"):
        await ledger.commit_claim(record("b"), [gpu(1)])
    in_the_way.rmdir()
    await ledger.commit_claim(record("b"), [gpu(1)])
    assert [claim.uid for claim in files.read_snapshot(path).claims] == ["a", "b"]
    await ledger.close()
