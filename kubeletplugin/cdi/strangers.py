"""CDI files of others that harm more than themselves. They are named, never touched: they belong to somebody.

Broken files, empty ones and those of unknown versions cost nobody else anything (measured with containerd 2.3). Two
things do: a kind whose vendor or class is a single letter makes containerd's CDI library panic, at each start of
containerd again until the file is gone (container-device-interface issue 320, in library versions up to 1.1.0); and a
device of ours defined in a second file of the same folder can't be resolved any more, by any pod.
"""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from deviceclasses import names
from kubeletplugin.cdi.driver import DRIVER_FILE
from kubeletplugin.files import read_regular

_SUFFIXES = (".json", ".yaml")
_KIND = re.compile(r"""\bkind["']?\s*:\s*["']?([^\s"',}#/]+)/([^\s"',}#]+)""")
_MOST_BYTES = 1 << 20
_OURS = re.compile(rf"{re.escape(names.CDI_VENDOR)}-{re.escape(names.CDI_CLAIM_CLASS)}_.+\.json")

_Mark = tuple[int, int, int]


class Strangers:
    """``folder`` is ours, ``others`` are further folders that the runtime reads. ``look`` blocks briefly and reads only
    what has changed since the last one."""

    def __init__(self, folder: Path, others: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._others = tuple(others)
        self._read: dict[Path, tuple[_Mark, str, str, str]] = {}

    def look(self, claim_uids: Collection[str]) -> tuple[str, ...]:
        """What is wrong, a sentence for each file. ``claim_uids`` are the claims that have a file of ours."""
        found: dict[Path, tuple[_Mark, str, str, str]] = {}
        for folder in (self._folder, *self._others):
            for path in _files(folder):
                mark = _mark(path)
                if mark is None or (folder == self._folder and _is_ours(path.name)):
                    continue
                known = self._read.get(path)
                found[path] = known if known is not None and known[0] == mark else (mark, *_head(path))
        self._read = found
        problems = (self._problem(path, *head[1:], claim_uids) for path, head in sorted(found.items()))
        return tuple(problem for problem in problems if problem)

    def _problem(self, path: Path, vendor: str, class_: str, text: str, claim_uids: Collection[str]) -> str:
        if len(vendor) == 1 or len(class_) == 1:
            return (
                f"CDI file {path} of somebody else has kind {vendor}/{class_}: containerd panics on a vendor or class"
                " of one letter, and at each start again until the file is gone; remove it"
            )
        if path.parent != self._folder or vendor != names.CDI_VENDOR:
            return ""
        twice = class_ == names.CDI_DRIVER_CLASS or any(uid in text for uid in claim_uids)
        if not twice or class_ not in (names.CDI_DRIVER_CLASS, names.CDI_CLAIM_CLASS):
            return ""
        return (
            f"CDI file {path} of somebody else defines devices of {vendor}/{class_} a second time: no container that"
            " needs them can start; remove it"
        )


def _files(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.endswith(_SUFFIXES)]
    except OSError:
        return []


def _is_ours(name: str) -> bool:
    return name == DRIVER_FILE or _OURS.fullmatch(name) is not None


def _mark(path: Path) -> _Mark | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _head(path: Path) -> tuple[str, str, str]:
    """Vendor, class, and the text where it may name devices of ours; all empty for what can't be read or is broken."""
    try:
        text = read_regular(path, _MOST_BYTES).decode(errors="replace")
    except OSError:
        return "", "", ""
    kind = _KIND.search(text)
    if kind is None:
        return "", "", ""
    return kind[1], kind[2], text if kind[1] == names.CDI_VENDOR else ""
