"""What a claim's row says: the answer as it was given, and what its CDI file is made from.

The row alone must do for a repeated answer and for writing the file anew, with the claim object gone or the API
server away. The JSON is additive: a reader passes over keys that it doesn't know.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kubeletplugin.cdi.api import ClaimDevice, ClaimSpecs
from kubeletplugin.inventory.model import Device, Inventory
from kubeletplugin.ledger.model import ClaimRecord
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.model import PreparedDevice, PrepareResult
from kubeletplugin.prepare.plan import Plan, PlannedDevice


@dataclass(frozen=True, slots=True)
class RecordedDevice:
    """One result of a prepared claim: how the API names it, and which device it is."""

    pool: str
    device: str
    share_id: str
    uuid: str


def make_record(
    allocation: Allocation,
    plan: Plan,
    specs: ClaimSpecs,
    *,
    aliases: tuple[str, ...],
    boot_id: str,
    epoch: int,
    prepared_at: str,
    pods: frozenset[str],
) -> ClaimRecord:
    return ClaimRecord(
        uid=allocation.uid,
        namespace=allocation.namespace,
        name=allocation.name,
        fingerprint=allocation.fingerprint,
        result=json.dumps([_entry(planned, specs) for planned in plan.devices], separators=(",", ":")),
        cdi_names=cdi_names(plan),
        aliases=aliases,
        boot_id=boot_id,
        epoch=epoch,
        prepared_at=prepared_at,
        pods=pods,
    )


def adopted_record(
    claim: KubeletClaim, devices: Mapping[str, Device], *, boot_id: str, epoch: int, prepared_at: str
) -> ClaimRecord:
    """Of a claim that only the kubelet knows to be prepared; ``devices`` by CDI name.

    Without a fingerprint it answers no call: the next Prepare (the kubelet's or our own) puts a whole one in its
    place. Until then it holds the devices and keeps the file.
    """
    entries = [
        {"pool": "", "request": "", "device": device.name, "uuid": device.uuid, "cdi_name": name, "cdi_ids": []}
        for name, device in devices.items()
    ]
    return ClaimRecord(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        fingerprint="",
        result=json.dumps([{**entry, "share_id": None} for entry in entries], separators=(",", ":")),
        cdi_names=tuple(devices),
        aliases=tuple(name for name in claim.cdi_names if name not in devices),
        boot_id=boot_id,
        epoch=epoch,
        prepared_at=prepared_at,
        pods=claim.pods,
    )


def is_adopted(record: ClaimRecord) -> bool:
    return not record.fingerprint


def cdi_names(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(planned.cdi_name for planned in plan.devices))


def aliases_for(uid: str, names: tuple[str, ...], kubelet: KubeletClaims, old: ClaimRecord | None) -> tuple[str, ...]:
    """Older names of the claim that the kubelet still hands to the runtime (docs/protocol, R_ALIAS).

    Kubelets up to 1.36 append what a repeated Prepare answers, and a container whose list has one unresolvable id
    can't start. Without the kubelet's list every older name that the row knows may be on it.
    """
    older = kubelet.cdi_names(uid)
    if kubelet.unreadable and old is not None:
        older = (*old.cdi_names, *old.aliases)
    return tuple(name for name in dict.fromkeys(older) if name not in names)


def answer(record: ClaimRecord) -> PrepareResult:
    """The answer as it was first given: same devices, same ids, same order."""
    return PrepareResult(
        tuple(
            PreparedDevice(
                request_names=(entry["request"],),
                pool_name=entry["pool"],
                device_name=entry["device"],
                cdi_device_ids=tuple(entry["cdi_ids"]),
                share_id=entry["share_id"],
            )
            for entry in _entries(record)
        )
    )


def recorded_devices(record: ClaimRecord) -> tuple[RecordedDevice, ...]:
    return tuple(
        RecordedDevice(entry["pool"], entry["device"], entry["share_id"] or "", entry["uuid"])
        for entry in _entries(record)
    )


def requests_of(record: ClaimRecord, uuid: str) -> tuple[str, ...]:
    """The requests that the device was allocated for: several where the claim has shares of it. One without a name for
    a claim that was adopted."""
    return tuple(dict.fromkeys(entry["request"] for entry in _entries(record) if entry["uuid"] == uuid))


def planned_spec(plan: Plan) -> tuple[ClaimDevice, ...]:
    """What the claim's file defines, each device once."""
    devices = {planned.cdi_name: ClaimDevice(planned.cdi_name, planned.device) for planned in plan.devices}
    return tuple(devices.values())


def recorded_spec(record: ClaimRecord, inventory: Inventory) -> tuple[ClaimDevice, ...] | None:
    """The same from the row; None while a device isn't in the inventory."""
    devices = {}
    for entry in _entries(record):
        device = inventory.by_uuid(entry["uuid"])
        if device is None:
            return None
        devices[entry["cdi_name"]] = ClaimDevice(entry["cdi_name"], device)
    return tuple(devices.values())


def _entry(planned: PlannedDevice, specs: ClaimSpecs) -> dict[str, Any]:
    return {
        "request": planned.result.answered_request,
        "pool": planned.result.pool,
        "device": planned.result.device,
        "uuid": planned.device.uuid,
        "cdi_name": planned.cdi_name,
        "cdi_ids": specs.device_ids(planned.cdi_name),
        "share_id": planned.result.share_id,
    }


def _entries(record: ClaimRecord) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(record.result)
    return entries
