"""Opening the ledger's file, reading it without an agent, and setting a damaged one aside.

An agent that has the ledger open must never open its file a second time by other means: closing any descriptor of a
file drops all POSIX locks that the process has on it. ``read_snapshot`` is therefore for other processes only.
"""

import itertools
import sqlite3
from pathlib import Path

from kubeletplugin.fence import Fence
from kubeletplugin.ledger import queries, schema
from kubeletplugin.ledger.errors import LedgerBusyError, LedgerDamagedError, LedgerIOError
from kubeletplugin.ledger.model import Snapshot

BUSY_SECONDS = 2.0
"""How long to wait for another process' write lock. Only the active instance writes, so a longer wait means that a
stopped one is inside a transaction, and that doesn't end by waiting."""

CACHE_KIBIBYTES = 65536
"""More than any ledger is: all of it was read at the opening, and stays in memory should the file be harmed."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_SCHEMA})
_ADVICE = {
    sqlite3.SQLITE_FULL: "free space there (or inodes: df -i)",
    sqlite3.SQLITE_READONLY: "make its folder writable (the kernel log says why the file system isn't)",
    sqlite3.SQLITE_IOERR: "look for errors of the disk in the kernel log",
}
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


def translate(error: sqlite3.Error, doing: str) -> Exception:
    """SQLite's error as one of ours; a misuse of SQLite is a bug and comes back as it is."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary in _DAMAGED or code == sqlite3.SQLITE_IOERR_SHORT_READ:
        return LedgerDamagedError(f"{doing}: {error}")
    if primary in _BUSY:
        return LedgerBusyError(f"{doing}: another process has it locked")
    if isinstance(error, sqlite3.OperationalError):
        advice = _ADVICE.get(primary or 0)
        return LedgerIOError(f"{doing}: {error}; {advice}" if advice else f"{doing}: {error}")
    return error


def connect(path: Path) -> sqlite3.Connection:
    """Opens for writing and checks the file's structure. Raises LedgerDamagedError, LedgerBusyError, LedgerIOError."""
    doing = f"open the ledger {path}"
    if path.is_dir():
        raise LedgerDamagedError(f"{doing}: it is a folder")
    _check_has_file(path, doing)
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise translate(error, doing) from error
    if verdict != ("ok",):
        connection.close()
        raise LedgerDamagedError(f"{doing}: {verdict}")
    return connection


def _check_has_file(path: Path, doing: str) -> None:
    """SQLite makes the log after the file's first page, and deletes one that it finds beside an empty file."""
    if _size(path) == 0 and _size(path.with_name(f"{path.name}-wal")) > 0:
        raise LedgerDamagedError(f"{doing}: it is empty or gone, while its log is there")


def _size(path: Path) -> int:
    """0 for what isn't there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def check_usable(path: Path) -> int:
    """For a version that hasn't registered yet: the last epoch of the lease that the ledger has seen, 0 when unknown;
    LedgerTooNewError when it could never become active. Whatever else is wrong with the file is for the active instance
    to find and to heal. Not while this process has the ledger open."""
    try:
        _check_has_file(path, "look at the ledger")
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            meta = schema.read_meta(connection)
            schema.check_writable(meta, str(path))
            return schema.last_epoch(meta)
        finally:
            connection.close()
    except (sqlite3.Error, LedgerDamagedError):
        return 0


def snapshot(connection: sqlite3.Connection) -> Snapshot:
    return Snapshot(
        boot_id=schema.read_meta(connection).get("boot_id", ""),
        claims=queries.claims(connection),
        holds=queries.holds(connection),
        intents=queries.intents(connection),
        bindings=queries.bindings(connection),
        verdicts=queries.verdicts(connection),
    )


def read_snapshot(path: Path) -> Snapshot:
    """Reads the file while no agent runs, or another process' agent. Never writes.

    What a killed agent committed may still be in the write-ahead log only. Opening read-only takes it into account
    where the log's index can be made (root on the node can); ``immutable`` would not, so it serves only for a log
    that is missing or empty. Raises LedgerDamagedError, LedgerTooNewError, LedgerIOError (no such file included).
    """
    doing = f"read the ledger {path}"
    try:
        size = path.stat().st_size
    except OSError as error:
        raise LedgerIOError(f"{doing}: {error.strerror}") from error
    _check_has_file(path, doing)
    if size == 0:
        return Snapshot(boot_id="")
    try:
        return _read(path, "mode=ro")
    except sqlite3.OperationalError as error:
        wal = path.with_name(path.name + "-wal")
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CANTOPEN or (wal.exists() and wal.stat().st_size > 0):
            raise translate(error, doing) from error
    except sqlite3.Error as error:
        raise translate(error, doing) from error
    try:
        return _read(path, "mode=ro&immutable=1")
    except sqlite3.Error as error:
        raise translate(error, doing) from error


def _read(path: Path, options: str) -> Snapshot:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS)
    try:
        connection.execute("BEGIN")
        meta = schema.read_meta(connection)
        if not meta:
            return Snapshot(boot_id="")
        schema.check_readable(meta, str(path))
        return snapshot(connection)
    finally:
        connection.close()


def set_aside(path: Path, stamp: str, fence: Fence) -> Path:
    """Renames a damaged ledger, its log with it, to ``<name>.damaged-<stamp>`` and returns the new path. Whatever of it
    is missing is passed over.

    For the active instance only, with the ledger closed. It is done under the lease: an activation may be given up
    while this runs in its thread, and the next holder's ledger must not be renamed. Raises LedgerIOError,
    NotActiveError.
    """
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    for number in itertools.count(2):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    with fence.held():
        try:
            # The file first: cut off here, the next opening finds a log without one, which is damage, too. A file
            # without its log would be opened as it was before what is only in there.
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
        except OSError as error:
            raise LedgerIOError(f"set the damaged ledger {path} aside: {error.strerror}") from error
    return aside
