"""What the server stored against what was wanted.

Order counts, since it is placement policy. Two things may differ: a quantity's spelling, and a taint's timeAdded,
which the server sets when it is left out and rounds to seconds. The stored time has to be sent again with every
write, because eviction counts from it and a write without it starts anew.

An API server drops fields whose feature gate is off, without a word. A device without the field can mean something
else than the device with it (a taint!), so that what was dropped is found by reading the answer.
"""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deviceclasses.quantity import parse_quantity
from kubeapi.client import Json
from kubeletplugin.errors import RecoverableError
from kubeletplugin.slices.pool import SliceContent

_CONTENT_FIELDS = frozenset({"devices", "sharedCounters"})
_ADDRESS_FIELDS = frozenset({"driver", "nodeName", "pool"})
_ROUNDING = datetime.timedelta(seconds=1)

_GATES = {
    "sharedCounters": "DRAPartitionableDevices",
    "perDeviceNodeSelection": "DRAPartitionableDevices",
    "devices.consumesCounters": "DRAPartitionableDevices",
    "devices.taints": "DRADeviceTaints",
    "devices.bindsToNode": "DRADeviceBindingConditions",
    "devices.bindingConditions": "DRADeviceBindingConditions",
    "devices.bindingFailureConditions": "DRADeviceBindingConditions",
    "devices.allowMultipleAllocations": "DRAConsumableCapacity",
    "devices.capacity.requestPolicy": "DRAConsumableCapacity",
    "devices.consumesCounters.compatibilityGroups": "DRADeviceCompatibilityGroups",
}


@dataclass(frozen=True, slots=True)
class DroppedField:
    """``field`` as in the API, without names and indices: ``devices.taints``. ``device`` is empty for the slice's."""

    field: str
    device: str = ""


class DroppedFieldsError(RecoverableError):
    """The server doesn't keep these fields; it never heals by writing again."""

    def __init__(self, pool: str, dropped: Sequence[DroppedField]) -> None:
        self.pool = pool
        self.dropped = tuple(dropped)
        fields = ", ".join(sorted({item.field for item in dropped}))
        gates = f"off: {', '.join(self.disabled_features)}" if self.disabled_features else "unknown to it"
        super().__init__(
            f"write pool {pool}: the API server dropped {fields} ({gates}), so devices with them aren't published"
        )

    @property
    def disabled_features(self) -> tuple[str, ...]:
        """The feature gates that seem to be off; a field without a known one isn't among them."""
        return tuple(sorted({_GATES[item.field] for item in self.dropped if item.field in _GATES}))


def same_content(spec: Json, wanted: SliceContent) -> bool:
    """Whether a stored spec holds just what is wanted, in that order."""
    if spec.keys() - _ADDRESS_FIELDS - _CONTENT_FIELDS:
        return False
    devices, counters = spec.get("devices", ()), spec.get("sharedCounters", ())
    return (
        len(devices) == len(wanted.devices)
        and all(_same_device(stored, mine) for stored, mine in zip(devices, wanted.devices, strict=True))
        and _canonical(list(counters)) == _canonical(list(wanted.shared_counters))
    )


def _same_device(stored: Json, wanted: Json) -> bool:
    return _same_taints(stored.get("taints", ()), wanted.get("taints", ())) and _canonical(
        {key: value for key, value in stored.items() if key != "taints"}
    ) == _canonical({key: value for key, value in wanted.items() if key != "taints"})


def _canonical(value: Any, key: str = "") -> Any:
    """With quantities (all of them are under ``value``, of capacities and counters) as numbers."""
    if isinstance(value, dict):
        return {name: _canonical(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if key == "value" and isinstance(value, str):
        return parse_quantity(value)
    return type(value), value


def _same_taints(stored: Sequence[Json], wanted: Sequence[Json]) -> bool:
    return len(stored) == len(wanted) and all(map(_same_taint, stored, wanted))


def _same_taint(stored: Json, wanted: Json) -> bool:
    if not _same_identity(stored, wanted):
        return False
    if "timeAdded" not in stored or "timeAdded" not in wanted:
        return True
    difference = _time(stored["timeAdded"]) - _time(wanted["timeAdded"])
    return abs(difference) <= _ROUNDING


def _same_identity(one: Json, other: Json) -> bool:
    return all(one.get(key, "") == other.get(key, "") for key in ("key", "value", "effect"))


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def keep_time_added(wanted: Sequence[Json], stored: Sequence[Json]) -> list[Json]:
    """The wanted devices, each taint with the stored time of the same taint where it has none of its own."""
    by_name = {device.get("name"): device for device in stored}
    return [_with_times(device, by_name.get(device["name"], {}).get("taints", ())) for device in wanted]


def _with_times(device: Json, stored: Sequence[Json]) -> Json:
    if not device.get("taints"):
        return device
    return {**device, "taints": [_with_time(taint, stored) for taint in device["taints"]]}


def _with_time(taint: Json, stored: Sequence[Json]) -> Json:
    if "timeAdded" in taint:
        return taint
    same = next((it for it in stored if _same_identity(it, taint) and "timeAdded" in it), None)
    return {**taint, "timeAdded": same["timeAdded"]} if same else taint


def dropped_fields(sent: Json, stored: Json) -> tuple[DroppedField, ...]:
    """What is in the spec that was sent and not in the one that came back."""
    found: dict[DroppedField, None] = {}
    devices = {device.get("name"): device for device in stored.get("devices", ())}
    for field in sent.keys() - {"devices"}:
        if field not in stored:
            found[DroppedField(field)] = None
    for device in sent.get("devices", ()):
        for field in _missing(device, devices.get(device["name"], {}), "devices"):
            found[DroppedField(field, device["name"])] = None
    return tuple(sorted(found, key=lambda item: (item.device, item.field)))


def _missing(sent: Json, stored: Json, path: str) -> Iterator[str]:
    """Fields of one device. Of maps and lists the entries are compared by key and place."""
    for field, value in sent.items():
        if field not in stored:
            yield f"{path}.{field}"
        elif field in ("attributes", "capacity"):
            for name, entry in value.items():
                yield from _missing_of_entry(entry, stored[field].get(name, {}), f"{path}.{field}")
        elif field in ("consumesCounters", "taints"):
            for entry, kept in zip(value, stored[field], strict=False):
                yield from _missing_of_entry(entry, kept, f"{path}.{field}")


def _missing_of_entry(sent: Json, stored: Json, path: str) -> Iterator[str]:
    return (f"{path}.{field}" for field in sent if field not in stored)


def uses_field(device: Json, field: str) -> bool:
    """Whether a device has a field of the form that DroppedField names."""
    return field in _missing(device, {}, "devices") or field in _nested_fields(device)


def _nested_fields(device: Json) -> Iterator[str]:
    for field in ("attributes", "capacity", "consumesCounters", "taints"):
        value = device.get(field, {})
        for entry in value.values() if isinstance(value, dict) else value:
            yield from (f"devices.{field}.{name}" for name in entry)
