"""Tells when a file was written, replaced or taken away, by inotify on its folder (Linux; nothing in the standard
library does).

The kubelet's dra_manager_state changes at every pod that uses a claim, and what it said in between is lost, so polling
would miss pods; and an idle node should wake nobody.
"""

import asyncio
import ctypes
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

_EVENT = struct.Struct("iIII")
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _DELETE, _MOVE_SELF = 0x8, 0x40, 0x80, 0x200, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_WANTED = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _MOVE_SELF
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
POLL_SECONDS = 1.0
"""Between two looks where inotify can't be had (its instances are used up, the folder is gone)."""


class _Watch:
    """``changed`` is set at every change that is wanted, and whenever something may have been missed: when the watch
    begins, for what came before it, and where it can't be had."""

    def __init__(self, folder: Path, what: Path) -> None:
        """``what`` is watched, for people."""
        self._folder = folder
        self._what = what
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        said = None
        while True:
            try:
                await self._watch()
                said = None
            except OSError as error:
                if error.errno != said:
                    log.warning("watch %s: %s; looking every %g s instead", self._what, error.strerror, POLL_SECONDS)
                said = error.errno
            self._missed()
            await asyncio.sleep(POLL_SECONDS)

    def _heard(self, name: str, mask: int) -> None:
        raise NotImplementedError

    def _missed(self) -> None:
        self.changed.set()

    async def _watch(self) -> None:
        """Until the folder itself is gone."""
        descriptor = _open(self._folder)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, self._read, descriptor, gone)
        self._missed()
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _read(self, descriptor: int, gone: asyncio.Event) -> None:
        data = os.read(descriptor, 65536)
        position = 0
        while position < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            if mask & _OVERFLOW:
                self._missed()
            elif name:
                self._heard(os.fsdecode(name), mask)
            if mask & (_IGNORED | _MOVE_SELF):
                gone.set()


class FileWatch(_Watch):
    """``changed`` is set at every change of ``path``, or of the same with one of ``suffixes``. Whoever waits clears
    it."""

    def __init__(self, path: Path, suffixes: Sequence[str] = ()) -> None:
        super().__init__(path.parent, path)
        self._names = {path.name, *(path.name + suffix for suffix in suffixes)}

    def _heard(self, name: str, mask: int) -> None:
        if name in self._names:
            self.changed.set()


class HarmWatch(_Watch):
    """Tells of files that were taken away or written in place: what nobody does to them who puts whole files into their
    place by a rename. ``changed`` is set until ``take``."""

    def __init__(self, folder: Path, prefix: str) -> None:
        """Of files whose names begin with ``prefix``."""
        super().__init__(folder, folder)
        self._prefix = prefix
        self._names: set[str] = set()
        self._all = False

    def take(self) -> frozenset[str] | None:
        """Names since the last call; None when it may be any."""
        names, everything = frozenset(self._names), self._all
        self._names, self._all = set(), False
        self.changed.clear()
        return None if everything else names

    def take_again(self) -> None:
        """What was taken wasn't looked at."""
        self._missed()

    def _heard(self, name: str, mask: int) -> None:
        if name.startswith(self._prefix) and mask & (_CLOSE_WRITE | _MOVED_FROM | _DELETE):
            self._names.add(name)
            self.changed.set()

    def _missed(self) -> None:
        self._all = True
        self.changed.set()


def _open(folder: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(_NONBLOCK_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(descriptor, os.fsencode(folder), _WANTED) < 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number))
    return descriptor
