"""Files appear whole, by a rename inside the folder, under the fence; leftovers and errors are dealt with."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.fence import Fence
from tests.unit.cdi.machine import CountingFence, LostLease

PREFIX = "k8s.gpu.nvidia.com-"
NAME = f"{PREFIX}claim_1.json"


def make(folder: Path, fence: Fence | None = None, instance: str = "pod-1", epoch: int = 3) -> SpecWriter:
    return SpecWriter(folder, fence or CountingFence(), prefix=PREFIX, instance=instance, epoch=epoch)


def test_makes_the_folder_and_leaves_no_temporary(tmp_path: Path) -> None:
    writer = make(tmp_path / "run/cdi")
    assert writer.write(NAME, b"{}")
    assert os.listdir(tmp_path / "run/cdi") == [NAME]
    assert (tmp_path / "run/cdi" / NAME).read_bytes() == b"{}"
    assert (tmp_path / "run/cdi" / NAME).stat().st_mode & 0o777 == 0o644


def test_unchanged_content_keeps_the_inode(tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.write(NAME, b"{}")
    inode = (tmp_path / NAME).stat().st_ino
    assert not writer.write(NAME, b"{}")
    assert (tmp_path / NAME).stat().st_ino == inode
    assert writer.write(NAME, b"{ }")
    assert (tmp_path / NAME).stat().st_ino != inode


class WatchingFence:
    """Looks into the folder at the moment when the lease is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[list[str]] = []

    @contextmanager
    def _held(self) -> Iterator[None]:
        self.seen.append(sorted(os.listdir(self.folder)))
        yield
        self.seen.append(sorted(os.listdir(self.folder)))

    def held(self) -> AbstractContextManager[None]:
        return self._held()


def test_only_the_rename_happens_under_the_fence_and_the_temporary_is_beside_its_place(tmp_path: Path) -> None:
    fence = WatchingFence(tmp_path)
    make(tmp_path, fence).write(NAME, b"{}")
    before, after = fence.seen
    assert before == [f"{NAME}.pod-1.3.0.tmp"]
    assert after == [NAME]


def test_without_the_lease_nothing_changes(tmp_path: Path) -> None:
    make(tmp_path).write(NAME, b"old")
    writer = make(tmp_path, LostLease())
    with pytest.raises(NotActiveError):
        writer.write(NAME, b"new")
    with pytest.raises(NotActiveError):
        writer.remove(NAME)
    with pytest.raises(NotActiveError):
        writer.remove_leftovers()
    assert os.listdir(tmp_path) == [NAME]
    assert (tmp_path / NAME).read_bytes() == b"old"


def test_a_replaced_file_goes_with_the_rename(tmp_path: Path) -> None:
    peer = f"{PREFIX}claim_1.yaml"
    (tmp_path / peer).write_text("---")
    writer = make(tmp_path)
    assert writer.write(NAME, b"{}", replaces=peer)
    assert os.listdir(tmp_path) == [NAME]
    (tmp_path / peer).write_text("---")
    assert writer.write(NAME, b"{}", replaces=peer), "unchanged content, but the other file is back"
    assert os.listdir(tmp_path) == [NAME]
    assert not writer.write(NAME, b"{}", replaces=peer)


def test_remove_is_fenced_and_missing_is_success(tmp_path: Path) -> None:
    fence = CountingFence()
    writer = make(tmp_path, fence)
    writer.write(NAME, b"{}")
    writer.remove(NAME)
    writer.remove(NAME)
    assert fence.asked == 3
    assert not writer.exists(NAME)
    make(tmp_path / "absent").remove(NAME)


def test_leftovers_of_others_go_and_nothing_else(tmp_path: Path) -> None:
    ours = f"{NAME}.pod-1.3.7.tmp"
    others = [f"{NAME}.pod-1.2.0.tmp", f"{NAME}.pod-2.3.0.tmp", f"{PREFIX}driver.json.pod-9.0.1.tmp"]
    foreign = ["spec.123.tmp", "vendor.json", NAME]
    for name in [ours, *others, *foreign]:
        (tmp_path / name).touch()
    assert make(tmp_path).remove_leftovers() == 3
    assert sorted(os.listdir(tmp_path)) == sorted([ours, *foreign])
    assert make(tmp_path / "absent").remove_leftovers() == 0


def test_names_are_ours_and_finished(tmp_path: Path) -> None:
    writer = make(tmp_path)
    writer.write(NAME, b"{}")
    for name in (f"{NAME}.pod-2.1.0.tmp", "vendor.json"):
        (tmp_path / name).touch()
    assert writer.names() == {NAME}
    assert make(tmp_path / "absent").names() == frozenset()


def test_an_instance_name_never_leaves_the_folder(tmp_path: Path) -> None:
    fence = WatchingFence(tmp_path)
    make(tmp_path, fence, instance="../a.b", epoch=0).write(NAME, b"{}")
    assert fence.seen[0] == [f"{NAME}.---a-b.0.0.tmp"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free space there"),
        (errno.EROFS, "Read-only file system; mount it writable"),
        (errno.EIO, "Input/output error$"),
    ],
)
def test_io_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advice: str) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError(code, os.strerror(code))

    writer = make(tmp_path)
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(RecoverableError, match=f"write CDI spec .*{NAME}: {advice}") as caught:
        writer.write(NAME, b"{}")
    assert isinstance(caught.value.__cause__, OSError)
    assert os.listdir(tmp_path) == [], "the temporary file is gone"


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "cdi").touch()
    with pytest.raises(RecoverableError, match="make it a folder"):
        make(tmp_path / "cdi").write(NAME, b"{}")


def test_threads_that_write_at_once_don_t_share_temporaries(tmp_path: Path) -> None:
    writer = make(tmp_path)
    names = [f"{PREFIX}claim_{number}.json" for number in range(8)]
    threads = [threading.Thread(target=writer.write, args=(name, name.encode() * 50)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(os.listdir(tmp_path)) == names
    assert all((tmp_path / name).read_bytes() == name.encode() * 50 for name in names)


def test_what_is_no_file_is_written_over_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    os.mkfifo(tmp_path / f"{NAME}.pod-1.3.0.tmp")
    writer = make(tmp_path)
    with pytest.raises(RecoverableError, match="write CDI spec"):
        writer.write(NAME, b"{}")
    assert writer.write(NAME, b"{}")
    assert (tmp_path / NAME).read_bytes() == b"{}"
