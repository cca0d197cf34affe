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
from pathlib import Path

log = logging.getLogger(__name__)

_EVENT = struct.Struct("iIII")
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _DELETE, _MOVE_SELF = 0x8, 0x40, 0x80, 0x200, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_WANTED = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _DELETE | _MOVE_SELF
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
POLL_SECONDS = 1.0
"""Between two looks where inotify can't be had (its instances are used up, the folder is gone)."""


class FileWatch:
    """``changed`` is set at every change of ``path``, and once when the watch begins, for what came before it. Whoever
    waits clears it."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
                    log.warning("watch %s: %s; looking every %g s instead", self._path, error.strerror, POLL_SECONDS)
                said = error.errno
            self.changed.set()
            await asyncio.sleep(POLL_SECONDS)

    async def _watch(self) -> None:
        """Until the folder itself is gone."""
        descriptor = _open(self._path.parent)
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, self._read, descriptor, gone)
        self.changed.set()
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
            if name == os.fsencode(self._path.name) or mask & _OVERFLOW:
                self.changed.set()
            if mask & (_IGNORED | _MOVE_SELF):
                gone.set()


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
