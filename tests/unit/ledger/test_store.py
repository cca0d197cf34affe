"""The ledger's file: versions, the fence, damage, and what other processes see."""

import asyncio
import contextlib
import datetime
import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.errors import FatalError, NotActiveError
from kubeletplugin.inventory.model import NameBindings
from kubeletplugin.lease.api import AlwaysHeld
from kubeletplugin.ledger import files, schema
from kubeletplugin.ledger.errors import (
    LedgerBusyError,
    LedgerDamagedError,
    LedgerIOError,
    LedgerTooNewError,
)
from kubeletplugin.ledger.model import Drain
from kubeletplugin.ledger.store import Ledger
from tests.unit.ledger.rows import gpu, record

pytestmark = pytest.mark.anyio

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


class SwitchedFence:
    """Held until it is taken away."""

    def __init__(self) -> None:
        self.active = True
        self.threads: set[str] = set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        if not self.active:
            raise NotActiveError("lease lost")
        self.threads.add(threading.current_thread().name)
        yield


async def _open(path: Path, boot_id: str = "boot-1") -> Ledger:
    return await Ledger.open(path, fence=AlwaysHeld(), boot_id=boot_id)


async def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    await ledger.commit_claim(record("a", pods=frozenset({"p"})), [gpu(0), gpu(1, admin=True)])
    intent = await ledger.add_intent("time-slice", "GPU-0", {"interval": 0}, claim_uid="a")
    await ledger.mark_done(intent)
    await ledger.set_bindings({"gpu-0": "GPU-0"})
    await ledger.set_verdict("GPU-0", {"state": "unhealthy", "xid": 79})
    before = await ledger.snapshot()
    await ledger.close()

    again = await _open(path, boot_id="boot-2")
    after = await again.snapshot()
    await again.close()

    assert after.boot_id == "boot-2"
    assert (after.claims, after.holds, after.intents) == (before.claims, before.holds, before.intents)
    assert after.claims == (record("a", pods=frozenset({"p"})),)
    assert (after.intents[0].undo, after.intents[0].done, after.intents[0].boot_id) == ({"interval": 0}, True, "boot-1")
    assert (after.bindings, after.verdicts) == (before.bindings, before.verdicts)
    assert after.verdicts == {"GPU-0": {"state": "unhealthy", "xid": 79}}


async def test_the_file_is_durable_and_in_one_thread(tmp_path: Path) -> None:
    fence = SwitchedFence()
    ledger = await Ledger.open(tmp_path / "ledger.db", fence=fence, boot_id="b")
    await asyncio.gather(*(ledger.commit_claim(record(f"c{i}"), [gpu(i)]) for i in range(20)))

    modes = await ledger._read(
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
        ]
    )
    await ledger.close()

    assert modes == ["wal", 2]
    assert len(fence.threads) == 1
    assert threading.current_thread().name not in fence.threads


async def test_without_the_lease_nothing_is_written(tmp_path: Path) -> None:
    fence = SwitchedFence()
    ledger = await Ledger.open(tmp_path / "ledger.db", fence=fence, boot_id="b")
    await ledger.commit_claim(record("a"), [gpu(0)])
    before = await ledger.snapshot()

    fence.active = False
    with pytest.raises(NotActiveError):
        await ledger.commit_claim(record("b"), [gpu(1)])
    with pytest.raises(NotActiveError):
        await ledger.end_claim("a", [], NOW)

    assert await ledger.snapshot() == before
    await ledger.close()
    with pytest.raises(NotActiveError):
        await Ledger.open(tmp_path / "other.db", fence=fence, boot_id="b")
    assert not (tmp_path / "other.db").exists()


class SlowFence:
    """Lets the test decide how long a write takes."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.entered.set()
        assert self.go_on.wait(10)
        yield


async def test_a_write_whose_caller_is_cancelled_has_happened_or_never_will(tmp_path: Path) -> None:
    fence = SlowFence()
    ledger = await Ledger.open(tmp_path / "ledger.db", fence=fence, boot_id="b")
    fence.entered.clear()
    fence.go_on.clear()
    running = asyncio.ensure_future(ledger.commit_claim(record("a"), [gpu(0)]))
    queued = asyncio.ensure_future(ledger.commit_claim(record("b"), [gpu(1)]))
    await asyncio.to_thread(fence.entered.wait, 10)
    for write in (running, queued):
        write.cancel()
    await asyncio.wait({running, queued})
    fence.go_on.set()

    assert [claim.uid for claim in await ledger.claims()] == ["a"]
    await ledger.close()


async def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    ledger = await _open(tmp_path / "ledger.db")
    await ledger.set_bindings({"gpu-0": "GPU-0", "gpu-1": "GPU-1"})
    await ledger.commit_claim(record("a"), [gpu(0)])

    with pytest.raises(ValueError, match="gpu-0: a hold refers to it as GPU-0, not GPU-9"):
        await ledger.set_bindings({"gpu-0": "GPU-9", "gpu-2": "GPU-2"})
    with pytest.raises(ValueError, match="not None"):
        await ledger.set_bindings({"gpu-1": "GPU-1"})

    assert await ledger.bindings() == {"gpu-0": "GPU-0", "gpu-1": "GPU-1"}
    await ledger.set_bindings({"gpu-0": "GPU-0", "gpu-1": "GPU-9"})
    assert await ledger.bindings() == {"gpu-0": "GPU-0", "gpu-1": "GPU-9"}
    await ledger.end_claim("a", [], NOW)
    await ledger.set_bindings({"gpu-0": "GPU-9"})
    await ledger.close()


async def test_the_ledger_serves_as_the_inventorys_name_bindings(tmp_path: Path) -> None:
    ledger = await _open(tmp_path / "ledger.db")
    bindings: NameBindings = ledger
    await ledger.commit_claim(record("a"), [gpu(0, admin=True)])
    assert await bindings.referenced_names() == {"gpu-0"}
    await ledger.close()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be taken for one" * 100, b"SQLite format 3\0"]
)
async def test_a_damaged_file_is_told_apart_and_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerDamagedError):
        await _open(path)

    aside = files.set_aside(path, "20260102T030405Z", AlwaysHeld())

    assert aside.name == "ledger.db.damaged-20260102T030405Z"
    assert aside.read_bytes() == content
    ledger = await _open(path)
    assert await ledger.claims() == ()
    await ledger.close()


async def test_a_damaged_file_is_not_set_aside_without_the_lease(tmp_path: Path) -> None:
    """The rename runs in a thread that outlives a cancelled activation: the file may be the next holder's by then."""
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database")
    fence = SwitchedFence()
    fence.active = False
    with pytest.raises(NotActiveError):
        files.set_aside(path, "20260102T030405Z", fence)
    assert os.listdir(tmp_path) == ["ledger.db"]


@pytest.mark.parametrize(("boot", "left"), [("boot-1", {"gpu-0"}), ("boot-2", set())])
async def test_what_was_draining_ends_with_the_boot(tmp_path: Path, boot: str, left: set[str]) -> None:
    """No process outlives it; and a device that is gone since could never be looked at."""
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    await ledger.commit_claim(record("b"), [gpu(1)])
    await ledger.end_claim("a", [Drain(gpu(0), frozenset({"pod"}), "running")], NOW)
    await ledger.close()

    again = await _open(path, boot_id=boot)

    assert {hold.device.name for hold in await again.draining()} == left
    assert [hold.device.name for hold in await again.holds_of("b")] == ["gpu-1"]
    await again.close()


async def test_what_the_ledger_was_not_told_is_taken_in_beside_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    strays = [(record("a", fingerprint=""), [gpu(1)]), (record("b", fingerprint=""), [gpu(0)])]
    await ledger.adopt(strays, [Drain(gpu(2), frozenset({"pod"}), "running")], NOW)
    await ledger.close()

    again = await _open(path)

    assert {claim.uid: claim.fingerprint for claim in await again.claims()} == {"a": "f", "b": ""}
    holds = (await again.snapshot()).holds
    assert [(hold.holder.id, hold.device.name, hold.state.value) for hold in holds] == [
        ("a", "gpu-0", "held"),
        ("b", "gpu-0", "held"),
        ("", "gpu-2", "draining"),
    ]
    await again.close()


async def test_damage_inside_a_real_ledger_is_found_at_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    for index in range(50):
        await ledger.commit_claim(record(f"c{index}"), [gpu(index)])
    await ledger.close()
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(LedgerDamagedError):
        await _open(path)


@pytest.mark.parametrize(("key", "opens"), [("min_reader", True), ("min_writer", False)])
async def test_a_newer_versions_file(tmp_path: Path, key: str, opens: bool) -> None:
    """A newer one may still be written when it says so, and keeps its versions."""
    path = tmp_path / "ledger.db"
    await (await _open(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE claims ADD COLUMN novelty TEXT NOT NULL DEFAULT 'x'")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(schema.SCHEMA + 5),))
        connection.execute("UPDATE meta SET value = ? WHERE key = ?", (str(schema.SCHEMA + (key != "min_reader")), key))
        connection.commit()

    if not opens:
        with pytest.raises(
            LedgerTooNewError, match=f"schema {schema.SCHEMA + 5}.*run the newer version again"
        ) as caught:
            await _open(path)
        assert isinstance(caught.value, FatalError)
        return
    ledger = await _open(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    await ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert schema.read_meta(connection)["schema"] == str(schema.SCHEMA + 5)
        assert connection.execute("SELECT novelty FROM claims").fetchall() == [("x",)]


def test_a_reader_refuses_what_is_too_new_for_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    asyncio.run(_open_and_close(path))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'min_reader'")
        connection.commit()
    with pytest.raises(LedgerTooNewError, match="may be read by schema 99"):
        files.read_snapshot(path)


async def test_a_locked_file_is_busy_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUSY_SECONDS", 0.01)
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusyError, match="another process has it locked"):
            await ledger.commit_claim(record("a"), [gpu(0)])
        other.execute("ROLLBACK")
    assert await ledger.commit_claim(record("a"), [gpu(0)]) == ()
    await ledger.close()


async def test_an_unusable_place_is_an_io_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerIOError, match="unable to open"):
        await _open(tmp_path / "missing" / "ledger.db")
    with pytest.raises(LedgerIOError, match="No such file"):
        files.read_snapshot(tmp_path / "ledger.db")


_KILLED = """
import asyncio, os, pathlib, sys
from kubeletplugin.lease.api import AlwaysHeld
from kubeletplugin.ledger.model import Drain
from kubeletplugin.ledger.store import Ledger
from tests.unit.ledger.rows import gpu, record

async def main():
    ledger = await Ledger.open(pathlib.Path(sys.argv[1]), fence=AlwaysHeld(), boot_id="b")
    await ledger.commit_claim(record("a"), [gpu(0)])
    os._exit(9)

asyncio.run(main())
"""


def test_a_killed_agents_last_commit_is_read_from_its_log(tmp_path: Path) -> None:
    """Its log was never brought into the file: reading the file alone would miss it."""
    path = tmp_path / "ledger.db"
    ended = subprocess.run([sys.executable, "-c", _KILLED, str(path)], cwd=Path.cwd(), check=False)
    assert ended.returncode == 9
    assert (tmp_path / "ledger.db-wal").stat().st_size > 0
    before = sorted(entry.name for entry in tmp_path.iterdir())

    snapshot = files.read_snapshot(path)

    assert [claim.uid for claim in snapshot.claims] == ["a"]
    assert [hold.device.name for hold in snapshot.holds] == ["gpu-0"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before
    assert (tmp_path / "ledger.db-wal").stat().st_size > 0


def test_an_orderly_closed_ledger_is_readable_without_any_right_to_write(tmp_path: Path) -> None:
    folder = tmp_path / "ro"
    folder.mkdir()
    path = folder / "ledger.db"
    asyncio.run(_open_and_close(path))
    folder.chmod(0o555)
    try:
        assert files.read_snapshot(path).boot_id == "boot-1"
    finally:
        folder.chmod(0o755)


def test_a_folder_without_a_ledger_yet(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    assert files.read_snapshot(path).claims == ()


async def test_a_reader_beside_the_agent_sees_committed_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await _open(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    script = (
        "import pathlib, sys; from kubeletplugin.ledger.files import read_snapshot; "
        "print(*[claim.uid for claim in read_snapshot(pathlib.Path(sys.argv[1])).claims])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(path), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": "."}
    )
    out, _ = await process.communicate()
    assert out == b"a\n"
    assert await ledger.commit_claim(record("b"), [gpu(1)]) == ()
    await ledger.close()


async def _open_and_close(path: Path) -> None:
    await (await _open(path)).close()


async def test_a_close_without_the_lease_leaves_the_file_alone(tmp_path: Path) -> None:
    """A close checkpoints and takes locks: not beside a new holder, nor by the garbage collector's chance."""
    fence = SwitchedFence()
    path = tmp_path / "ledger.db"
    ledger = await Ledger.open(path, fence=fence, boot_id="b")
    await ledger.commit_claim(record("a"), [gpu(0)])
    log_size = path.with_name("ledger.db-wal").stat().st_size
    fence.active = False
    await ledger.close()
    del ledger
    gc.collect()
    assert path.with_name("ledger.db-wal").stat().st_size == log_size > 0


async def test_a_folder_in_the_ledgers_place_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.mkdir()
    with pytest.raises(LedgerDamagedError, match=r"open the ledger .*: it is a folder"):
        await _open(path)
    files.set_aside(path, "20260102T030405Z", AlwaysHeld())
    await (await _open(path)).close()


@pytest.mark.parametrize(
    ("key", "usable"), [("schema", True), ("min_reader", True), ("min_writer", False), ("", True), ("damage", True)]
)
async def test_what_a_version_can_never_write_it_knows_beforehand(tmp_path: Path, key: str, usable: bool) -> None:
    """And only that: whatever else is wrong is the active instance's to find."""
    path = tmp_path / "ledger.db"
    if key == "damage":
        path.write_bytes(b"x" * 5000)
    elif key:
        serving = await _open(path)
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
