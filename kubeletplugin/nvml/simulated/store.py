"""The state file: cheap to look at, safe to change from several processes.

Readers take no lock: the file is replaced whole, and a look costs one ``stat`` while it hasn't changed. Writers read,
change and replace it under an exclusive flock on ``<file>.lock`` (never on the file itself, which each write
replaces). An editor takes no lock; what it leaves behind in the middle of a save is a broken file for a moment, and a
broken or missing file leaves readers with the last good state and refuses changes, so that a person's edit is never
overwritten.
"""

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kubeletplugin.errors import FatalError
from kubeletplugin.files import read_regular
from kubeletplugin.nvml.simulated.profile import problem
from kubeletplugin.nvml.simulated.state import NodeState

T = TypeVar("T")

log = logging.getLogger(__name__)


class StateFileError(FatalError):
    """The simulated node's file can't be read or doesn't parse."""


Signature = tuple[int, int, int]


class StateStore:
    """One process' view of the file at ``path``. Safe for use from several threads."""

    def __init__(self, path: Path, after_change: Callable[[NodeState], None] | None = None) -> None:
        """Raises StateFileError when the file can't be read. ``after_change`` runs under the lock after a write."""
        self.path = path
        self._after_change = after_change
        self._mutex = threading.Lock()
        self._seen = self._signature()
        self._state = self._load()

    @classmethod
    def create(cls, path: Path, make: Callable[[], NodeState]) -> bool:
        """Write the first state unless the file is there; True when this call wrote it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if path.exists():
                return False
            _replace(path, make())
            return True

    def read(self) -> NodeState:
        """The state as the file has it now, or as it had it before it broke. Not to be changed by the caller."""
        with self._mutex:
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                try:
                    self._state = self._load()
                except StateFileError as e:
                    log.warning("keep the last good state of the simulated node: %s", e)
            return self._state

    def update(self, change: Callable[[NodeState], T]) -> T:
        """Apply ``change`` to the file's state; nothing is written when it raises. Raises StateFileError."""
        with _locked(self.path):
            state = self._load()
            before = _serialise(state)
            result = change(state)
            state.number_events()
            after = _serialise(state)
            if after == before:
                return result
            signature = _replace(self.path, state)
            with self._mutex:
                self._state, self._seen = NodeState.model_validate_json(after), signature
            if self._after_change is not None:
                self._after_change(state)
            return result

    def _signature(self) -> Signature | None:
        try:
            return _signature_of(self.path)
        except OSError:
            return None

    def _load(self) -> NodeState:
        try:
            return NodeState.model_validate_json(read_regular(self.path))
        except OSError as e:
            raise StateFileError(f"read simulated node {self.path}: {e.strerror}") from e
        except ValidationError as e:
            raise StateFileError(f"read simulated node {self.path}: {problem(e)}; mend or remove the file") from e


def _serialise(state: NodeState) -> bytes:
    return state.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


def _signature_of(path: Path) -> Signature:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _replace(path: Path, state: NodeState) -> Signature:
    """The signature is what was written here, whatever an editor makes of the file right after."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.write_bytes(_serialise(state))
    # The kernel's own time stamps are coarse: two quick writes could look alike to a reader's stat.
    now = time.time_ns()
    os.utime(temporary, ns=(now, now))
    signature = _signature_of(temporary)
    temporary.rename(path)
    return signature


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path.with_name(f".{path.name}.lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
