"""The ledger's file: what is written and when, the fence, and what other processes see."""

import asyncio
import contextlib
import datetime
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.inventory.model import NameBindings
from kubeletplugin.ledger import files
from kubeletplugin.ledger.model import Drain
from kubeletplugin.ledger.store import Ledger
from tests.unit.ledger.ledgers import SwitchedFence, open_and_close, open_ledger
from tests.unit.ledger.rows import gpu, record

pytestmark = pytest.mark.anyio

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


async def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    await ledger.commit_claim(record("a", pods=frozenset({"p"})), [gpu(0), gpu(1, admin=True)])
    intent = await ledger.add_intent("time-slice", "GPU-0", {"interval": 0}, claim_uid="a")
    await ledger.mark_done(intent)
    await ledger.set_bindings({"gpu-0": "GPU-0"})
    await ledger.set_verdict("GPU-0", {"state": "unhealthy", "xid": 79})
    before = await ledger.snapshot()
    await ledger.close()

    again = await open_ledger(path, boot_id="boot-2")
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
    ledger = await open_ledger(tmp_path / "ledger.db")
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
    ledger = await open_ledger(tmp_path / "ledger.db")
    bindings: NameBindings = ledger
    await ledger.commit_claim(record("a"), [gpu(0, admin=True)])
    assert await bindings.referenced_names() == {"gpu-0"}
    await ledger.close()


@pytest.mark.parametrize(("boot", "left"), [("boot-1", {"gpu-0"}), ("boot-2", set())])
async def test_what_was_draining_ends_with_the_boot(tmp_path: Path, boot: str, left: set[str]) -> None:
    """No process outlives it; and a device that is gone since could never be looked at."""
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    await ledger.commit_claim(record("b"), [gpu(1)])
    await ledger.end_claim("a", [Drain(gpu(0), frozenset({"pod"}), "running")], NOW)
    await ledger.close()

    again = await open_ledger(path, boot_id=boot)

    assert {hold.device.name for hold in await again.draining()} == left
    assert [hold.device.name for hold in await again.holds_of("b")] == ["gpu-1"]
    await again.close()


async def test_what_the_ledger_was_not_told_is_taken_in_beside_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await open_ledger(path)
    await ledger.commit_claim(record("a"), [gpu(0)])
    strays = [(record("a", fingerprint=""), [gpu(1)]), (record("b", fingerprint=""), [gpu(0)])]
    await ledger.adopt(strays, [Drain(gpu(2), frozenset({"pod"}), "running")], NOW)
    await ledger.close()

    again = await open_ledger(path)

    assert {claim.uid: claim.fingerprint for claim in await again.claims()} == {"a": "f", "b": ""}
    holds = (await again.snapshot()).holds
    assert [(hold.holder.id, hold.device.name, hold.state.value) for hold in holds] == [
        ("a", "gpu-0", "held"),
        ("b", "gpu-0", "held"),
        ("", "gpu-2", "draining"),
    ]
    await again.close()


_KILLED = """
import asyncio, os, pathlib, sys
from tests.fakes.fence import AlwaysHeld
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
    asyncio.run(open_and_close(path))
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
    ledger = await open_ledger(path)
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


async def close(ledger: Ledger) -> None:
    await ledger.close()


async def abandon(ledger: Ledger) -> None:
    ledger.abandon()


async def forget(ledger: Ledger) -> None:
    pass


@pytest.mark.parametrize("end", [close, abandon, forget])
async def test_without_the_lease_the_file_is_left_alone(
    tmp_path: Path, end: Callable[[Ledger], Awaitable[None]]
) -> None:
    """A close checkpoints and takes locks: not beside a new holder, nor by the garbage collector's chance."""
    fence = SwitchedFence()
    path = tmp_path / "ledger.db"
    executor = ThreadPoolExecutor(1)
    ledger = await Ledger.open(path, fence=fence, boot_id="b", executor=executor)
    await ledger.commit_claim(record("a"), [gpu(0)])
    log_size = path.with_name("ledger.db-wal").stat().st_size
    fence.active = False
    await end(ledger)
    del ledger
    executor.shutdown()
    gc.collect()
    assert path.with_name("ledger.db-wal").stat().st_size == log_size > 0


async def test_an_opening_that_was_cancelled_leaves_the_file_alone_too(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    inside, leave = threading.Event(), threading.Event()

    class SlowFence:
        @contextlib.contextmanager
        def held(self) -> Iterator[None]:
            inside.set()
            leave.wait(5)
            yield

    executor = ThreadPoolExecutor(1)
    opening = asyncio.create_task(Ledger.open(path, fence=SlowFence(), boot_id="b", executor=executor))
    await asyncio.to_thread(inside.wait, 5)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    leave.set()
    executor.shutdown()
    del opening
    gc.collect()
    assert path.with_name("ledger.db-wal").stat().st_size > 0
