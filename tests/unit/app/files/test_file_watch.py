"""The kubelet's file is seen whenever it changes, however it is written, and whatever becomes of its folder."""

import asyncio
import contextlib
import errno
import os
import shutil
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kubeletplugin.app.files import file_watch
from kubeletplugin.app.files.file_watch import FileWatch, HarmWatch

pytestmark = pytest.mark.anyio

NAME = "dra_manager_state"


@contextlib.asynccontextmanager
async def watched(path: Path) -> AsyncIterator[FileWatch]:
    """Begun, and its first word taken."""
    watch = FileWatch(path)
    task = asyncio.create_task(watch.run())
    try:
        await seen(watch)
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def seen(watch: FileWatch) -> None:
    await watch.changed.wait()
    watch.changed.clear()


def rename_over(path: Path) -> None:
    """As the kubelet writes it."""
    temporary = path.with_name(".tmp")
    temporary.write_text("new")
    temporary.rename(path)


def write_in_place(path: Path) -> None:
    path.write_text("new")


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("change", [rename_over, write_in_place])
async def test_written_or_replaced(change: Callable[[Path], None], exists: bool, tmp_path: Path) -> None:
    path = tmp_path / NAME
    if exists:
        path.write_text("old")
    async with watched(path) as watch:
        assert not watch.changed.is_set()
        change(path)
        await seen(watch)
        change(path)
        await seen(watch)


async def test_deleted(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("old")
    async with watched(tmp_path / NAME) as watch:
        (tmp_path / NAME).unlink()
        await seen(watch)


async def test_other_files_of_the_folder_are_not_told(tmp_path: Path) -> None:
    async with watched(tmp_path / NAME) as watch, watched(tmp_path / "other") as other:
        for name in ("other", f"{NAME}.tmp", f"x{NAME}"):
            (tmp_path / name).write_text("new")
        await seen(other)
        await asyncio.sleep(0)
        assert not watch.changed.is_set()


async def test_many_events_at_once_are_all_read(tmp_path: Path) -> None:
    """More than one read holds, ours the last of them."""
    async with watched(tmp_path / NAME) as watch:
        for number in range(1500):
            (tmp_path / f"{'x' * 40}{number % 2}").write_text("")
        (tmp_path / NAME).write_text("new")
        await seen(watch)


async def test_events_that_the_kernel_dropped_count_as_a_change(tmp_path: Path) -> None:
    watch = FileWatch(tmp_path / NAME)
    reading, writing = os.pipe()
    try:
        os.write(writing, struct.pack("iIII", -1, 0x4000, 0, 0))
        watch._read(reading, asyncio.Event())
    finally:
        os.close(reading)
        os.close(writing)
    assert watch.changed.is_set()


async def test_a_change_before_the_watch_began_is_told(tmp_path: Path) -> None:
    """Whoever read the file before he began to wait would otherwise never hear of what came in between."""
    watch = FileWatch(tmp_path / NAME)
    (tmp_path / NAME).write_text("new")
    task = asyncio.create_task(watch.run())
    await watch.changed.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)


def move_away(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.parametrize("lose", [remove, move_away])
async def test_a_folder_that_goes_and_comes_back_is_watched_again(
    lose: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_watch, "POLL_SECONDS", 0.001)
    folder = tmp_path / "kubelet"
    folder.mkdir()
    async with watched(folder / NAME) as watch:
        lose(folder)
        await seen(watch)
        opened = asyncio.Event()
        watch_folder = file_watch._open

        def note(path: Path) -> int:
            descriptor = watch_folder(path)
            opened.set()
            return descriptor

        monkeypatch.setattr(file_watch, "_open", note)
        folder.mkdir()
        await opened.wait()
        await seen(watch)
        (folder / NAME).write_text("new")
        await seen(watch)


async def test_without_inotify_it_looks_again_and_again_until_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(file_watch, "POLL_SECONDS", 0.001)
    watch_folder, tries = file_watch._open, 0
    opened = asyncio.Event()

    def refuse(path: Path) -> int:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.set()
        return watch_folder(path)

    monkeypatch.setattr(file_watch, "_open", refuse)
    async with watched(tmp_path / NAME) as watch:
        await seen(watch)
        await opened.wait()
        await asyncio.sleep(0)
        await seen(watch)
        (tmp_path / NAME).write_text("new")
        await seen(watch)
    assert [record.getMessage() for record in caplog.records] == [
        f"watch {tmp_path / NAME}: Too many open files; looking every 0.001 s instead"
    ]


async def test_nothing_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    async with watched(tmp_path / NAME):
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    assert os.listdir("/proc/self/fd") == before


# --- files that others harm ---
@contextlib.asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[HarmWatch]:
    watch = HarmWatch(folder, "ours-")
    task = asyncio.create_task(watch.run())
    try:
        await watch.changed.wait()
        assert watch.take() is None, "what came before it may be anything"
        yield watch
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_files_taken_away_or_written_into_are_told_and_whole_ones_put_into_place_are_not(tmp_path: Path) -> None:
    for name in ("ours-a", "ours-b", "ours-c", "ours-d", "theirs"):
        (tmp_path / name).write_text("old")
    async with guarded(tmp_path) as watch:
        rename_over(tmp_path / "ours-a")
        rename_over(tmp_path / "ours-new")
        (tmp_path / "theirs").unlink()
        (tmp_path / "ours-b").unlink()
        (tmp_path / "ours-c").write_text("broken")
        (tmp_path / "ours-d").rename(tmp_path / "elsewhere")
        await watch.changed.wait()
        assert watch.take() == frozenset({"ours-b", "ours-c", "ours-d"})
        assert not watch.changed.is_set()
        watch.take_again()
        assert watch.take() is None


async def test_a_folder_that_goes_is_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "POLL_SECONDS", 0.001)
    folder = tmp_path / "cdi"
    folder.mkdir()
    (folder / "ours-a").write_text("old")
    async with guarded(folder) as watch:
        shutil.rmtree(folder)
        async with asyncio.timeout(5):
            taken: frozenset[str] | None = frozenset()
            while taken is not None:
                await watch.changed.wait()
                taken = watch.take()
