"""A ledger's file to open, and a fence to take away."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.api import AlwaysHeld
from kubeletplugin.ledger.store import Ledger


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


async def open_ledger(path: Path, boot_id: str = "boot-1") -> Ledger:
    return await Ledger.open(path, fence=AlwaysHeld(), boot_id=boot_id)


async def open_and_close(path: Path) -> None:
    await (await open_ledger(path)).close()
