"""A ledger's file to open, and a fence to take away."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.ledger.store import Ledger
from tests.fakes.fence import AlwaysHeld


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


class Killed(BaseException):
    """The process has ended; not an Exception, so that nothing of the product catches it."""


def die_before_change(patch: pytest.MonkeyPatch, number: int) -> None:
    """Ends the process before it renames or removes a file for the ``number``-th time."""
    left = itertools.count(number - 1, -1)

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            if next(left) <= 0:
                raise Killed
            return change(*args, **kwargs)

        return run

    patch.setattr(Path, "rename", counted(Path.rename))
    patch.setattr(Path, "unlink", counted(Path.unlink))


async def open_ledger(path: Path, boot_id: str = "boot-1") -> Ledger:
    return await Ledger.open(path, fence=AlwaysHeld(), boot_id=boot_id)


async def open_and_close(path: Path) -> None:
    await (await open_ledger(path)).close()
