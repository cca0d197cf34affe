"""What a claim's ``status.devices`` says of our devices: which hardware a name stands for, and whether it works. Pure.

An entry is known by pool, device and share. ``data`` is small, strict JSON with keys as in the slices' attributes, for
exporters that label metrics by pod: {"uuid", "pciBusID", "driverVersion"}, a partition's also "parentUUID". Whoever
else writes entries of the claim, or conditions of ours, isn't touched.
"""

import datetime
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deviceclasses.names import DRIVER_NAME
from kubeapi.client import Json
from kubeletplugin.health.verdict import Health, Verdict, judge
from kubeletplugin.inventory.model import Device, Inventory
from kubeletplugin.prepare.record import RecordedDevice

READY = "Ready"

Key = tuple[str, str, str]
"""Pool, device, share id (empty without one): what tells entries of one driver apart."""
Entries = Mapping[Key, Json]

_STATUS = {Health.HEALTHY: "True", Health.UNHEALTHY: "False", Health.UNKNOWN: "Unknown"}
_REASON = {Health.HEALTHY: "Prepared", Health.UNHEALTHY: "DeviceUnhealthy", Health.UNKNOWN: "DeviceUnknown"}
_PREPARED = "the device is prepared for this claim and works as far as NVML tells"
_GONE = "the device isn't on this node any more"
_DRAINING = "processes of a former holder may still be on the device"


@dataclass(frozen=True, slots=True)
class Entry:
    """One prepared device as the claim should show it."""

    key: Key
    data: Json
    status: str
    reason: str
    message: str


def wanted(devices: Iterable[RecordedDevice], inventory: Inventory, draining: Collection[str]) -> dict[Key, Entry]:
    """``draining`` are UUIDs of devices that former holders may still be on. A device that two requests name (an
    admin's beside an ordinary one) is one entry."""
    return {(d.pool, d.device, d.share_id): _entry(d, inventory, draining) for d in devices}


def shown(claim: Json) -> dict[Key, Json]:
    """Our driver's entries as the claim has them."""
    entries = claim.get("status", {}).get("devices") or ()
    return {_key_of(entry): entry for entry in entries if entry.get("driver") == DRIVER_NAME}


def agree(wanted: Mapping[Key, Entry], shown: Entries) -> bool:
    """Whether nothing is to be written. What else an entry has is somebody else's."""
    return wanted.keys() == shown.keys() and all(_shows(shown[key], entry) for key, entry in wanted.items())


def body(uid: str, wanted: Mapping[Key, Entry], shown: Entries, now: datetime.datetime) -> Json:
    """To be applied to the claim's status. With the UID, so that a claim of the same name isn't meant."""
    devices = [_to_json(entry, shown.get(key, {}), now) for key, entry in wanted.items()]
    return {"metadata": {"uid": uid}, "status": {"devices": devices} if devices else {}}


def _entry(recorded: RecordedDevice, inventory: Inventory, draining: Collection[str]) -> Entry:
    device = inventory.by_uuid(recorded.uuid)
    verdict = judge(device, inventory) if device else Verdict(Health.UNHEALTHY, _GONE)
    status, reason = _STATUS[verdict.health], _REASON[verdict.health]
    message = verdict.message or _PREPARED
    if verdict.health is Health.HEALTHY and recorded.uuid in draining:
        status, reason, message = "False", "Draining", _DRAINING
    data = {"uuid": recorded.uuid, "driverVersion": inventory.driver_version, **(_place(device) if device else {})}
    return Entry((recorded.pool, recorded.device, recorded.share_id), data, status, reason, message)


def _place(device: Device) -> Json:
    place = {"pciBusID": device.pci_bus_id}
    return place if device.mig is None else {**place, "parentUUID": device.gpu_uuid}


def _key_of(entry: Mapping[str, Any]) -> Key:
    return entry.get("pool", ""), entry.get("device", ""), entry.get("shareID", "")


def _ready(entry: Json) -> Json:
    conditions: Iterable[Json] = entry.get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == READY), {})


def _shows(entry: Json, wanted: Entry) -> bool:
    ready = _ready(entry)
    said = (ready.get("status"), ready.get("reason"), ready.get("message"))
    return entry.get("data") == wanted.data and said == (wanted.status, wanted.reason, wanted.message)


def _to_json(entry: Entry, before: Json, now: datetime.datetime) -> Json:
    """The transition's time stays that of the last change of the status."""
    pool, device, share_id = entry.key
    ready = _ready(before)
    same = ready.get("status") == entry.status and ready.get("lastTransitionTime")
    return {
        "driver": DRIVER_NAME,
        "pool": pool,
        "device": device,
        **({"shareID": share_id} if share_id else {}),
        "data": entry.data,
        "conditions": [
            {
                "type": READY,
                "status": entry.status,
                "reason": entry.reason,
                "message": entry.message,
                "lastTransitionTime": same or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        ],
    }
