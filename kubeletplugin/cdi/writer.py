"""Writes CDI files so that a container runtime never sees half of one, and only while this instance is active.

A file is written beside its final place under a name that CDI ignores (``.tmp``) and renamed: the runtime's cache
notices renames that begin inside the folder, not files moved in from elsewhere. No fsync: whatever a crash loses is
rebuilt from the ledger and from the driver. A file whose content wouldn't change isn't touched, so that the runtime
isn't made to read its folder again.

Temporary names carry who made them (instance and epoch). The instance that takes over removes the others', which
makes their late renames fail, even where the lease didn't stop them.
"""

import errno
import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kubeletplugin import crashpoints
from kubeletplugin.errors import RecoverableError
from kubeletplugin.fence import Fence
from kubeletplugin.files import NotRegularError, read_regular

_TEMPORARY_SUFFIX = ".tmp"
_ADVICE = {
    errno.ENOSPC: "free space there (or inodes: df -i)",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EROFS: "mount it writable, or choose another CDI folder that the runtime reads too",
    errno.EACCES: "let the agent write there (it normally runs as root)",
    errno.EPERM: "let the agent write there (it normally runs as root)",
    errno.ENOTDIR: "make it a folder",
    errno.EEXIST: "make it a folder",
}


class SpecWriter:
    """One CDI folder, as this instance may change it. Methods block briefly and may be called from any thread.

    ``prefix`` begins the name of every file that is ours; nothing else in the folder is ever touched. ``epoch`` is the
    lease's that ``fence`` is of. All methods that change something raise NotActiveError when the lease is lost (nothing
    changed) and RecoverableError on I/O errors, with what to do.
    """

    def __init__(self, folder: Path, fence: Fence, *, prefix: str, instance: str, epoch: int) -> None:
        self.folder = folder
        self._fence = fence
        self._prefix = prefix
        self._instance = re.sub(r"[^A-Za-z0-9-]", "-", instance)
        self._epoch = epoch
        self._numbers = itertools.count()

    def write(self, name: str, content: bytes, *, replaces: str = "") -> bool:
        """True when the file was made or changed. ``replaces`` is another name for the same devices, whose file goes
        right after ours has come, under the same hold of the lease: a device in two files of one folder can't be
        resolved at all. A crash between the two leaves both until the next ``write``, which is why one whose own
        content is there already looks for the other too."""
        with self._explained("write CDI spec", name):
            unchanged = self._holds(name, content)
            if unchanged and not (replaces and (self.folder / replaces).exists()):
                return False
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            temporary = self._write_temporary(name, content)
            try:
                crashpoints.reached("cdi.temporary")
                with self._fence.held():
                    crashpoints.reached("cdi.fenced")
                    temporary.rename(self.folder / name)
                    crashpoints.reached("cdi.renamed")
                    if replaces:
                        (self.folder / replaces).unlink(missing_ok=True)
            except BaseException:
                # Nobody else ever refers to this name, so it may go without the lease.
                with suppress(OSError):
                    temporary.unlink()
                raise
            return True

    def remove(self, *names: str) -> None:
        """Missing is success."""
        with self._explained("remove CDI spec", names[0]), self._fence.held():
            for name in names:
                (self.folder / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def names(self) -> frozenset[str]:
        """Our files, temporary ones left out."""
        with self._explained("list CDI folder", ""):
            return frozenset(n for n in self._listing() if not n.endswith(_TEMPORARY_SUFFIX))

    def remove_leftovers(self) -> int:
        """Removes temporary files of every other instance and of earlier epochs; to be called after a take-over."""
        ours = f".{self._owner()}."
        with self._explained("clean CDI folder", ""):
            leftovers = [n for n in self._listing() if n.endswith(_TEMPORARY_SUFFIX) and ours not in n]
            with self._fence.held():
                for name in leftovers:
                    (self.folder / name).unlink(missing_ok=True)
            return len(leftovers)

    def _owner(self) -> str:
        return f"{self._instance}.{self._epoch}"

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return read_regular(self.folder / name) == content
        except (FileNotFoundError, NotRegularError):
            return False

    def _write_temporary(self, name: str, content: bytes) -> Path:
        path = self.folder / f"{name}.{self._owner()}.{next(self._numbers)}{_TEMPORARY_SUFFIX}"
        try:
            # A name left by an earlier process of this very instance and epoch is overwritten.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise
        return path

    def _listing(self) -> list[str]:
        try:
            return [n for n in os.listdir(self.folder) if n.startswith(self._prefix)]
        except FileNotFoundError:
            return []

    @contextmanager
    def _explained(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "")
            reason = error.strerror or str(error)
            raise RecoverableError(
                f"{what} {self.folder / name}: {reason}" + (f"; {advice}" if advice else "")
            ) from error
