"""The ledger's file harmed by others while it is open."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.lease.api import AlwaysHeld
from kubeletplugin.ledger import files
from kubeletplugin.ledger.errors import LedgerDamagedError, LedgerIOError
from kubeletplugin.ledger.store import Ledger
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


@pytest.mark.parametrize("harm", [remove, remove_with_log, replace, move_away])
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
