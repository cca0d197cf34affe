"""The ledger's file taken away, replaced or written to by somebody else, while we have it open.

SQLite goes on with the file that it opened, which nobody will find again, or with pages that are in its memory and in
the log only: what it shows may be whole, and yet be lost with this process. Where it is whole, the file is written anew
from it. Called by the active instance, under its lease, in the ledger's thread; looks go by stat, since opening the
file and closing it again would drop SQLite's locks.

What SQLite has in memory is what it read or wrote itself, so that comes first; what is in the harmed files is taken for
the rest, and the copy is then checked.

The new file is ``<name>.rescued`` from the moment it is whole until it is in place, and every opening of the ledger
first puts one in place: an agent that is killed in between loses nothing.
"""

import os
import sqlite3
from pathlib import Path

from kubeletplugin.errors import RecoverableError
from kubeletplugin.ledger import files, schema
from kubeletplugin.ledger.errors import LedgerDamagedError, LedgerIOError

Status = tuple[int, ...]
Stamp = tuple[Status | None, Status | None]
"""The file and its log as we left them."""


def stamp(path: Path) -> Stamp:
    """Nobody but us writes to either, and we only in a commit."""
    return _status(path), _status(log_of(path))


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def write_anew(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Ends ``connection`` and returns one to the new file at ``path``. What lies there is kept as ``<name>.replaced``.

    Raises LedgerIOError with ``connection`` as it was, LedgerDamagedError when what it shows isn't whole, or when it
    has ended and there is no other.
    """
    _check(connection, path)
    new = path.with_name(f"{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        target = sqlite3.connect(new)
        try:
            connection.backup(target)
        finally:
            target.close()
        new.rename(_rescued(path))
    except (sqlite3.Error, OSError) as error:
        raise LedgerIOError(f"write the ledger {path} anew: {error}") from error
    try:
        # Its close removes the log by name, so it comes before the new file has one.
        connection.close()
        finish(path)
        return files.connect(path)
    except (sqlite3.Error, RecoverableError) as error:
        raise LedgerDamagedError(f"write the ledger {path} anew: {error}") from error


def finish(path: Path) -> None:
    """Puts a file that was written anew in its place, if there is one. Raises LedgerIOError."""
    rescued = _rescued(path)
    try:
        if not rescued.exists():
            return
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if path.exists():
            path.rename(path.with_name(f"{path.name}.replaced"))
        rescued.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise LedgerIOError(f"put the ledger {rescued} in its place: {error.strerror}") from error


def _rescued(path: Path) -> Path:
    return path.with_name(f"{path.name}.rescued")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    doing = f"check the ledger {path}, to which somebody else wrote"
    try:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()
        empty = not schema.read_meta(connection)
    except sqlite3.Error as error:
        raise files.translate(error, doing) from error
    if verdict != ("ok",):
        raise LedgerDamagedError(f"{doing}: {verdict[0]}")
    if empty:
        raise LedgerDamagedError(f"{doing}: it is empty")


def _status(path: Path) -> Status | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
