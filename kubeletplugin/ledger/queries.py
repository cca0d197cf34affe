"""The ledger's statements: plain functions on a connection, each run inside one transaction of the caller's.

What runs for every claim touches only rows of that claim and of its GPUs, by index, so that its cost stays flat
however many claims are held.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubeletplugin.ledger import schema
from kubeletplugin.ledger.model import (
    ClaimRecord,
    Drain,
    HeldDevice,
    Hold,
    Holder,
    HoldState,
    Intent,
    Route,
)

_CLAIM = "uid, namespace, name, fingerprint, result, cdi_names, aliases, boot_id, epoch, prepared_at"
_HOLD = (
    "id, device_name, device_uuid, gpu_uuid, whole_gpu, share_id, admin, route, holder, holder_namespace, "
    "holder_name, state, since, reason"
)


# --- claims ---
def claim(connection: sqlite3.Connection, uid: str) -> ClaimRecord | None:
    row = connection.execute(f"SELECT {_CLAIM} FROM claims WHERE uid = ?", (uid,)).fetchone()
    return None if row is None else _claim_record(connection, row)


def claims(connection: sqlite3.Connection) -> tuple[ClaimRecord, ...]:
    rows = connection.execute(f"SELECT {_CLAIM} FROM claims ORDER BY prepared_at, uid").fetchall()
    return tuple(_claim_record(connection, row) for row in rows)


def commit_claim(
    connection: sqlite3.Connection, record: ClaimRecord, devices: Sequence[HeldDevice]
) -> tuple[Hold, ...]:
    """Writes the claim and its holds in place of those it has, unless others are in the way: then nothing is written
    and they are returned. Pods are added to those that the claim has already."""
    in_the_way = conflicts(connection, record.uid, devices)
    if in_the_way:
        return in_the_way
    known = claim(connection, record.uid)
    if known is not None and known.fingerprint == record.fingerprint:
        # The same claim once more: it has had its devices since the first time.
        record = replace(record, prepared_at=known.prepared_at)
    _put_claim(connection, record, devices)
    return ()


def _put_claim(connection: sqlite3.Connection, record: ClaimRecord, devices: Sequence[HeldDevice]) -> None:
    connection.execute(
        f"INSERT INTO claims ({_CLAIM}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET "
        "namespace = excluded.namespace, name = excluded.name, fingerprint = excluded.fingerprint, "
        "result = excluded.result, cdi_names = excluded.cdi_names, aliases = excluded.aliases, "
        "boot_id = excluded.boot_id, epoch = excluded.epoch, prepared_at = excluded.prepared_at",
        (
            record.uid,
            record.namespace,
            record.name,
            record.fingerprint,
            record.result,
            json.dumps(record.cdi_names),
            json.dumps(record.aliases),
            record.boot_id,
            record.epoch,
            record.prepared_at,
        ),
    )
    add_pods(connection, record.uid, record.pods)
    _delete_held(connection, record.uid)
    holder = Holder(Route.CLAIM, record.uid, record.namespace, record.name)
    for device in devices:
        _insert_hold(connection, device, holder, HoldState.HELD, record.prepared_at, "")


# --- what the ledger wasn't told ---
def adopt(
    connection: sqlite3.Connection,
    strays: Sequence[tuple[ClaimRecord, Sequence[HeldDevice]]],
    drains: Iterable[Drain],
    at: str,
) -> None:
    """Takes in what was found, whatever it overlaps with: it is so. A claim that was prepared keeps its row."""
    for record, devices in strays:
        known = claim(connection, record.uid)
        if known is None or not known.fingerprint:
            _put_claim(connection, record, devices)
    for drain in drains:
        _insert_drain(connection, drain, Holder(Route.CLAIM, ""), at)


def add_pods(connection: sqlite3.Connection, uid: str, pods: Collection[str]) -> None:
    """Adds to a claim's pods; one without a row has none."""
    connection.executemany(
        "INSERT INTO claim_pods (claim_uid, pod_uid) SELECT uid, ? FROM claims WHERE uid = ? ON CONFLICT DO NOTHING",
        [(pod, uid) for pod in sorted(pods)],
    )


def refresh_claim(connection: sqlite3.Connection, uid: str, aliases: Sequence[str], boot_id: str, epoch: int) -> None:
    """Notes that the claim's file is written anew in this boot."""
    connection.execute(
        "UPDATE claims SET aliases = ?, boot_id = ?, epoch = ? WHERE uid = ?",
        (json.dumps(list(aliases)), boot_id, epoch, uid),
    )


def end_claim(connection: sqlite3.Connection, uid: str, drains: Iterable[Drain], at: str) -> None:
    """Takes the claim's row and holds away, leaving ``drains`` in their place."""
    holder = _holder_of(connection, uid)
    _delete_held(connection, uid)
    connection.execute("DELETE FROM claims WHERE uid = ?", (uid,))
    connection.execute("DELETE FROM claim_pods WHERE claim_uid = ?", (uid,))
    for drain in drains:
        _insert_drain(connection, drain, holder, at)


def _claim_record(connection: sqlite3.Connection, row: Sequence[Any]) -> ClaimRecord:
    uid, namespace, name, fingerprint, result, cdi_names, aliases, boot_id, epoch, prepared_at = row
    pods = connection.execute("SELECT pod_uid FROM claim_pods WHERE claim_uid = ?", (uid,)).fetchall()
    return ClaimRecord(
        uid=uid,
        namespace=namespace,
        name=name,
        fingerprint=fingerprint,
        result=result,
        cdi_names=tuple(json.loads(cdi_names)),
        aliases=tuple(json.loads(aliases)),
        boot_id=boot_id,
        epoch=epoch,
        prepared_at=prepared_at,
        pods=frozenset(pod for (pod,) in pods),
    )


def _holder_of(connection: sqlite3.Connection, uid: str) -> Holder:
    row = connection.execute("SELECT namespace, name FROM claims WHERE uid = ?", (uid,)).fetchone()
    namespace, name = row if row is not None else ("", "")
    return Holder(Route.CLAIM, uid, namespace, name)


# --- holds ---
def conflicts(connection: sqlite3.Connection, claim_uid: str, devices: Iterable[HeldDevice]) -> tuple[Hold, ...]:
    """Holds of others, draining ones included, that ``devices`` would overlap with. A claim is never in its own way:
    its pods share by their own wish."""
    found: dict[int, Hold] = {}
    for device in devices:
        if device.admin:
            continue
        rows = connection.execute(
            f"SELECT {_HOLD} FROM holds WHERE gpu_uuid = ? AND admin = 0 AND NOT (route = ? AND holder = ?) "
            "AND (whole_gpu = 1 OR ? OR device_uuid = ?) "
            "AND NOT (share_id <> '' AND ? <> '' AND device_uuid = ?)",
            (
                device.gpu_uuid,
                Route.CLAIM,
                claim_uid,
                device.whole_gpu,
                device.uuid,
                device.share_id,
                device.uuid,
            ),
        ).fetchall()
        for hold in _holds(connection, rows):
            found[hold.id] = hold
    return tuple(found.values())


def holds(connection: sqlite3.Connection) -> tuple[Hold, ...]:
    return _holds(connection, connection.execute(f"SELECT {_HOLD} FROM holds ORDER BY id").fetchall())


def holds_of(connection: sqlite3.Connection, holder_id: str) -> tuple[Hold, ...]:
    rows = connection.execute(f"SELECT {_HOLD} FROM holds WHERE holder = ? ORDER BY id", (holder_id,)).fetchall()
    return _holds(connection, rows)


def holds_on(connection: sqlite3.Connection, gpu_uuid: str) -> tuple[Hold, ...]:
    rows = connection.execute(f"SELECT {_HOLD} FROM holds WHERE gpu_uuid = ? ORDER BY id", (gpu_uuid,)).fetchall()
    return _holds(connection, rows)


def pods_on(connection: sqlite3.Connection, gpu_uuid: str) -> dict[str, frozenset[str]]:
    rows = connection.execute(
        "SELECT DISTINCT claim_uid, pod_uid FROM holds JOIN claim_pods ON claim_uid = holder WHERE gpu_uuid = ?",
        (gpu_uuid,),
    )
    found: dict[str, set[str]] = {}
    for uid, pod in rows:
        found.setdefault(uid, set()).add(pod)
    return {uid: frozenset(pods) for uid, pods in found.items()}


def draining(connection: sqlite3.Connection) -> tuple[Hold, ...]:
    rows = connection.execute(f"SELECT {_HOLD} FROM holds WHERE state = 'draining' ORDER BY id").fetchall()
    return _holds(connection, rows)


def end_drain(connection: sqlite3.Connection, hold: Hold) -> bool:
    """False when this very drain is over already. An id alone isn't trusted: a ledger that was begun anew after damage
    gives its ids out again."""
    cursor = connection.execute(
        "DELETE FROM holds WHERE id = ? AND state = 'draining' AND device_uuid = ? AND holder = ? AND since = ?",
        (hold.id, hold.device.uuid, hold.holder.id, hold.since),
    )
    if cursor.rowcount == 0:
        return False
    connection.execute("DELETE FROM drain_pods WHERE hold_id = ?", (hold.id,))
    return True


def _delete_held(connection: sqlite3.Connection, claim_uid: str) -> None:
    connection.execute(
        "DELETE FROM holds WHERE holder = ? AND route = ? AND state = ?", (claim_uid, Route.CLAIM, HoldState.HELD)
    )


def _insert_hold(
    connection: sqlite3.Connection, device: HeldDevice, holder: Holder, state: HoldState, since: str, reason: str
) -> int:
    hold_id = _next_hold_id(connection)
    connection.execute(
        f"INSERT INTO holds ({_HOLD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            hold_id,
            device.name,
            device.uuid,
            device.gpu_uuid,
            device.whole_gpu,
            device.share_id,
            device.admin,
            holder.route,
            holder.id,
            holder.namespace,
            holder.name,
            state,
            since,
            reason,
        ),
    )
    return hold_id


def _next_hold_id(connection: sqlite3.Connection) -> int:
    """Never one that was given out before: SQLite's own would be, and whoever still has the old hold in mind (a person
    to whom it was shown, a look that takes long) would end another's."""
    counted = connection.execute("SELECT value FROM meta WHERE key = ?", (schema.LAST_HOLD_ID,)).fetchone()
    (highest,) = connection.execute("SELECT max(id) FROM holds").fetchone()
    hold_id = max(int(counted[0]) if counted else 0, highest or 0) + 1
    schema.set_meta(connection, {schema.LAST_HOLD_ID: str(hold_id)})
    return hold_id


def _insert_drain(connection: sqlite3.Connection, drain: Drain, holder: Holder, at: str) -> None:
    hold_id = _insert_hold(connection, drain.device, holder, HoldState.DRAINING, at, drain.reason)
    connection.executemany(
        "INSERT INTO drain_pods (hold_id, pod_uid) VALUES (?, ?)", [(hold_id, pod) for pod in sorted(drain.pods)]
    )


def _holds(connection: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> tuple[Hold, ...]:
    return tuple(_hold(connection, row) for row in rows)


def _hold(connection: sqlite3.Connection, row: Sequence[Any]) -> Hold:
    hold_id, name, uuid, gpu_uuid, whole_gpu, share_id, admin, *rest = row
    route, holder, namespace, holder_name, state, since, reason = rest
    pods: list[tuple[str]] = []
    if state == HoldState.DRAINING:
        pods = connection.execute("SELECT pod_uid FROM drain_pods WHERE hold_id = ?", (hold_id,)).fetchall()
    return Hold(
        id=hold_id,
        device=HeldDevice(name, uuid, gpu_uuid, bool(whole_gpu), share_id, bool(admin)),
        holder=Holder(Route(route), holder, namespace, holder_name),
        state=HoldState(state),
        since=since,
        reason=reason,
        pods=frozenset(pod for (pod,) in pods),
    )


# --- names ---
def bindings(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, uuid FROM name_bindings ORDER BY name").fetchall())


def referenced_names(connection: sqlite3.Connection) -> frozenset[str]:
    return frozenset(name for (name,) in connection.execute("SELECT DISTINCT device_name FROM holds").fetchall())


def set_bindings(connection: sqlite3.Connection, wanted: Mapping[str, str]) -> None:
    """Raises ValueError when a name that something refers to would be dropped or moved."""
    old = bindings(connection)
    for name in sorted(referenced_names(connection)):
        if name in old and wanted.get(name) != old[name]:
            raise ValueError(f"bind device name {name}: a hold refers to it as {old[name]}, not {wanted.get(name)}")
    gone = [(name,) for name in old if name not in wanted]
    changed = [(name, uuid) for name, uuid in wanted.items() if old.get(name) != uuid]
    connection.executemany("DELETE FROM name_bindings WHERE name = ?", gone)
    connection.executemany("INSERT OR REPLACE INTO name_bindings (name, uuid) VALUES (?, ?)", changed)


# --- intents ---
def add_intent(
    connection: sqlite3.Connection, kind: str, target: str, undo: Mapping[str, Any], claim_uid: str, boot_id: str
) -> int:
    cursor = connection.execute(
        "INSERT INTO intents (kind, target, undo, claim_uid, boot_id) VALUES (?, ?, ?, ?, ?)",
        (kind, target, json.dumps(undo, sort_keys=True), claim_uid, boot_id),
    )
    if cursor.lastrowid is None:
        raise sqlite3.InternalError("INSERT gave no row id")
    return cursor.lastrowid


def mark_done(connection: sqlite3.Connection, intent_id: int) -> None:
    connection.execute("UPDATE intents SET done = 1 WHERE id = ?", (intent_id,))


def remove_intent(connection: sqlite3.Connection, intent_id: int) -> None:
    connection.execute("DELETE FROM intents WHERE id = ?", (intent_id,))


def intents(connection: sqlite3.Connection) -> tuple[Intent, ...]:
    rows = connection.execute(
        "SELECT id, kind, target, undo, done, boot_id, claim_uid FROM intents ORDER BY id"
    ).fetchall()
    return tuple(
        Intent(intent_id, kind, target, json.loads(undo), bool(done), boot_id, claim_uid)
        for intent_id, kind, target, undo, done, boot_id, claim_uid in rows
    )


# --- verdicts ---
def verdicts(connection: sqlite3.Connection) -> dict[str, Mapping[str, Any]]:
    rows = connection.execute("SELECT device_uuid, verdict FROM verdicts ORDER BY device_uuid").fetchall()
    return {uuid: json.loads(verdict) for uuid, verdict in rows}


def set_verdict(connection: sqlite3.Connection, device_uuid: str, verdict: Mapping[str, Any] | None) -> None:
    """None takes the device's verdict away."""
    if verdict is None:
        connection.execute("DELETE FROM verdicts WHERE device_uuid = ?", (device_uuid,))
        return
    connection.execute(
        "INSERT OR REPLACE INTO verdicts (device_uuid, verdict) VALUES (?, ?)",
        (device_uuid, json.dumps(verdict, sort_keys=True)),
    )


# --- what people have been told ---
def told(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT subject, note FROM told ORDER BY subject").fetchall())


def set_told(connection: sqlite3.Connection, told: Mapping[str, str]) -> None:
    connection.execute("DELETE FROM told")
    connection.executemany("INSERT INTO told (subject, note) VALUES (?, ?)", sorted(told.items()))
