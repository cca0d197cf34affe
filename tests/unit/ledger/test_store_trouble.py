"""A ledger's file that is damaged, of a newer version, locked, or can't be used."""

import asyncio
import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from kubeletplugin.errors import FatalError, NotActiveError
from kubeletplugin.ledger import files, schema
from kubeletplugin.ledger.errors import LedgerBusyError, LedgerDamagedError, LedgerIOError, LedgerTooNewError
from tests.fakes.fence import AlwaysHeld
from tests.unit.ledger.ledgers import Killed, SwitchedFence, die_before_change, open_and_close, open_ledger
from tests.unit.ledger.rows import gpu, record

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0"]
)
async def test_a_damaged_file_is_told_apart_and_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerDamagedError):
        await open_ledger(path)

    aside = files.set_aside(path, "20260102T030405Z", AlwaysHeld())

    assert aside.name == "ledger.db.damaged-20260102T030405Z"
    assert aside.read_bytes() == content
    ledger = await open_ledger(path)
    assert await ledger.claims() == ()
    await ledger.close()


async def test_one_killed_while_it_sets_aside_leaves_no_file_without_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for the ledger, without what is only in the log."""
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    with monkeypatch.context() as patch:
        die_before_change(patch, 2)
        with pytest.raises(Killed):
            files.set_aside(path, "20260102T030405Z", AlwaysHeld())
    assert not path.exists()
    with pytest.raises(LedgerDamagedError, match="its log is there"):
        await open_ledger(path)
    files.set_aside(path, "20260102T030406Z", AlwaysHeld())
    again = await open_ledger(path)
    assert await again.claims() == ()
    await again.close()
    aside = path.with_name("ledger.db.damaged-20260102T030405Z")
    assert aside.read_bytes().startswith(b"SQLite format 3")


async def test_a_damaged_file_is_not_set_aside_without_the_lease(tmp_path: Path) -> None:
    """The rename runs in a thread that outlives a cancelled activation: the file may be the next holder's by then."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database")
    fence = SwitchedFence()
    fence.active = False
    with pytest.raises(NotActiveError):
        files.set_aside(path, "20260102T030405Z", fence)
    assert os.listdir(tmp_path) == ["ledger.db"]


async def test_damage_inside_a_real_ledger_is_found_at_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    for index in range(50):
        await ledger.commit_claim(record(f"c{index}"), [gpu(index)])
    await ledger.close()
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(LedgerDamagedError):
        await open_ledger(path)


@pytest.mark.parametrize(("key", "opens"), [("min_reader", True), ("min_writer", False)])
async def test_a_newer_versions_file(tmp_path: Path, key: str, opens: bool) -> None:
    """A newer one may still be written when it says so, and keeps its versions."""
    path = tmp_path / "ledger.db"
    await (await open_ledger(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE claims ADD COLUMN novelty TEXT NOT NULL DEFAULT 'x'")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(schema.SCHEMA + 5),))
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (str(schema.SCHEMA + (key != "min_reader")), key))
        connection.commit()

    if not opens:
        with pytest.raises(
            LedgerTooNewError, match=f"schema {schema.SCHEMA + 5}.*run the newer version again"
        ) as caught:
            await open_ledger(path)
        assert isinstance(caught.value, FatalError)
        return
    ledger = await open_ledger(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    await ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert schema.read_meta(connection)["schema"] == str(schema.SCHEMA + 5)
        assert connection.execute("SELECT novelty FROM claims").fetchall() == [("x",)]


def test_a_reader_refuses_what_is_too_new_for_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    asyncio.run(open_and_close(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'min_reader'")
        connection.commit()
    with pytest.raises(LedgerTooNewError, match="may be read by schema 99"):
        files.read_snapshot(path)


async def test_a_locked_file_is_busy_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUSY_SECONDS", 0.01)
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusyError, match="another process has it locked"):
            await ledger.commit_claim(record("a"), [gpu(0)])
        other.execute("ROLLBACK")
    assert await ledger.commit_claim(record("a"), [gpu(0)]) == ()
    await ledger.close()


async def test_an_unusable_place_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerIOError, match="unable to open"):
        await open_ledger(tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerIOError, match="No such file"):
        files.read_snapshot(tmp_path / "ledger.db")


async def test_a_folder_in_the_ledgers_place_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.mkdir()
    with pytest.raises(LedgerDamagedError, match=r"open the ledger .*: it is a folder"):
        await open_ledger(path)
    files.set_aside(path, "20260102T030405Z", AlwaysHeld())
    await (await open_ledger(path)).close()


@pytest.mark.parametrize(
    ("key", "usable"), [("schema", True), ("min_reader", True), ("min_writer", False), ("", True), ("damage", True)]
)
async def test_what_a_version_can_never_write_it_knows_beforehand(tmp_path: Path, key: str, usable: bool) -> None:
    """And only that: whatever else is wrong is the active instance's to find."""
    path = tmp_path / "ledger.db"
    if key == "damage":
        path.write_bytes(b"x" * 5000)
    elif key:
        serving = await open_ledger(path)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE meta SET value = ? WHERE key = ?", (str(schema.SCHEMA + 1), key))
            other.commit()
    if usable:
        files.check_usable(path)
        assert path.exists() == bool(key), "nothing is made"
    else:
        with pytest.raises(LedgerTooNewError, match="run the newer version again"):
            files.check_usable(path)
    if key not in ("", "damage"):
        await serving.commit_claim(record("a"), [gpu(0)])
        await serving.close()
