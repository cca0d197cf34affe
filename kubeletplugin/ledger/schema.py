"""Tables and versions of the ledger.

The schema grows only additively: a release adds tables, indices, and columns with a default, and raises SCHEMA.
MIN_READER and MIN_WRITER are written into the file and name the oldest schema whose code may still read or write it,
so that a roll-back to the release before finds a ledger that it can use. Enumerations carry no CHECK: SQLite can't
widen one later without copying the table.
"""

import sqlite3
from collections.abc import Mapping

from kubeletplugin.ledger.errors import LedgerDamagedError, LedgerTooNewError

SCHEMA = 1
MIN_READER = 1
MIN_WRITER = 1

LAST_HOLD_ID = "last_hold_id"
"""Key in ``meta``: the highest id that a hold ever had. A release that doesn't know it leaves it behind."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS claims (
  uid TEXT PRIMARY KEY,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  result TEXT NOT NULL,
  cdi_names TEXT NOT NULL,
  aliases TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  prepared_at TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS claim_pods (
  claim_uid TEXT NOT NULL,
  pod_uid TEXT NOT NULL,
  PRIMARY KEY (claim_uid, pod_uid)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS holds (
  id INTEGER PRIMARY KEY,
  route TEXT NOT NULL,
  holder TEXT NOT NULL,
  holder_namespace TEXT NOT NULL DEFAULT '',
  holder_name TEXT NOT NULL DEFAULT '',
  device_name TEXT NOT NULL,
  device_uuid TEXT NOT NULL,
  gpu_uuid TEXT NOT NULL,
  whole_gpu INTEGER NOT NULL,
  share_id TEXT NOT NULL DEFAULT '',
  admin INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL,
  since TEXT NOT NULL,
  reason TEXT NOT NULL DEFAULT '',
  -- The classic route's: the resource's name, the id as offered to the kubelet (a UUID or one of its replicas), and
  -- how sure we are that the container has it (pending, confirmed, absent).
  resource TEXT NOT NULL DEFAULT '',
  offered_id TEXT NOT NULL DEFAULT '',
  phase TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS holds_gpu ON holds (gpu_uuid);
CREATE INDEX IF NOT EXISTS holds_holder ON holds (holder);
CREATE INDEX IF NOT EXISTS holds_name ON holds (device_name);
CREATE INDEX IF NOT EXISTS holds_draining ON holds (id) WHERE state = 'draining';

CREATE TABLE IF NOT EXISTS drain_pods (
  hold_id INTEGER NOT NULL,
  pod_uid TEXT NOT NULL,
  PRIMARY KEY (hold_id, pod_uid)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS intents (
  id INTEGER PRIMARY KEY,
  claim_uid TEXT NOT NULL DEFAULT '',
  kind TEXT NOT NULL,
  target TEXT NOT NULL,
  undo TEXT NOT NULL,
  done INTEGER NOT NULL DEFAULT 0,
  boot_id TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS name_bindings (
  name TEXT PRIMARY KEY,
  uuid TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS verdicts (
  device_uuid TEXT PRIMARY KEY,
  verdict TEXT NOT NULL
) WITHOUT ROWID;

-- What people have been told and what stands, so that a restart doesn't tell it again.
CREATE TABLE IF NOT EXISTS told (
  subject TEXT PRIMARY KEY,
  note TEXT NOT NULL
) WITHOUT ROWID;
"""


def read_meta(connection: sqlite3.Connection) -> dict[str, str]:
    """Empty for a new file."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return {}
    return dict(connection.execute("SELECT key, value FROM meta").fetchall())


def check_readable(meta: dict[str, str], path: str) -> None:
    """Raises LedgerTooNewError, LedgerDamagedError."""
    _check(meta, "min_reader", "read", path)


def check_writable(meta: dict[str, str], path: str) -> None:
    """Raises LedgerTooNewError, LedgerDamagedError."""
    _check(meta, "min_writer", "written", path)


def prepare_for_writing(connection: sqlite3.Connection, path: str, boot_id: str, epoch: int = 0) -> bool:
    """Creates or grows the schema, inside the caller's transaction. Never lowers what a newer version wrote. Ends what
    was draining in an earlier boot. ``epoch`` is the lease's, the highest is kept. Returns whether the ledger is new.

    Raises LedgerTooNewError, LedgerDamagedError.
    """
    meta = read_meta(connection)
    check_writable(meta, path)
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            connection.execute(statement)
    versions = {"schema": SCHEMA, "min_reader": MIN_READER, "min_writer": MIN_WRITER}
    if meta.get("boot_id", boot_id) != boot_id:
        # No process outlives the boot, and with its claim's file gone none has begun on the device since.
        connection.execute("DELETE FROM drain_pods")
        connection.execute("DELETE FROM holds WHERE state = 'draining'")
    wanted = {key: str(max(version, int(meta.get(key, 0)))) for key, version in versions.items()}
    highest = str(max(epoch, last_epoch(meta)))
    set_meta(connection, {**wanted, "boot_id": boot_id, "epoch": highest})
    return not meta


def last_epoch(meta: Mapping[str, str]) -> int:
    """The highest epoch of the lease in which this ledger was opened, 0 when unknown."""
    text = meta.get("epoch", "")
    return int(text) if text.isdecimal() else 0


def _check(meta: dict[str, str], key: str, verb: str, path: str) -> None:
    if not meta:
        return
    try:
        needed, schema = int(meta[key]), int(meta["schema"])
    except (KeyError, ValueError) as error:
        raise LedgerDamagedError(f"read the versions of the ledger {path}: {dict(meta)!r}") from error
    if needed > SCHEMA:
        raise LedgerTooNewError(
            f"open the ledger {path}: it has schema {schema} and may be {verb} by schema {needed} and newer only, this "
            f"version has {SCHEMA}; run the newer version again"
        )


def set_meta(connection: sqlite3.Connection, values: dict[str, str]) -> None:
    connection.executemany(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value "
        "WHERE value <> excluded.value",
        sorted(values.items()),
    )
