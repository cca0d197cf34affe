"""What should be published: pools of slices, built fresh from the inventory every time.

Nothing here is read from the server and changed: an object that went through an older program has lost what that
didn't know. Order is placement policy, because the scheduler is first-fit over slices sorted by name and then over
devices as listed: devices are kept in the inventory's order (GPUs by PCI address, partitions by placement), so that
neighbours are handed out together and a node fills from one end.

Slices are cut at 64 devices although 128 are allowed, because one taint on one device lowers the limit to 64, and a
node must not become unpublishable on the day on which a GPU breaks. Counters go into slices of their own (the API
demands it since 1.35), before the devices that draw on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kubeapi.client import RESOURCE_SLICES, Json
from kubeletplugin.inventory.model import Attribute, Device

MAX_DEVICES_PER_SLICE = 64
MAX_COUNTER_SETS_PER_SLICE = 8

_MIN_INDEX_DIGITS = 5
_MAX_NAME = 253

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SliceContent:
    """One slice: devices or counter sets, as in the API. Both empty in the one slice of an empty pool."""

    devices: tuple[Json, ...] = ()
    shared_counters: tuple[Json, ...] = ()

    def fields(self) -> Json:
        """The fields of spec; empty ones are left out, because the server refuses some of them."""
        fields: Json = {}
        if self.shared_counters:
            fields["sharedCounters"] = list(self.shared_counters)
        if self.devices:
            fields["devices"] = list(self.devices)
        return fields


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool as wanted; it always has a slice, since no pool and an empty one are different statements.

    ``generation`` is a lower bound; the server's highest generation counts where that is above it.
    """

    name: str
    slices: tuple[SliceContent, ...] = (SliceContent(),)
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Publisher:
    """Whose slices they are. ``node_uid`` is empty where it isn't known: then the slices have no owner."""

    driver: str
    node_name: str
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class PoolContent:
    """What a pool should hold, in order, before it is cut into slices."""

    devices: tuple[Json, ...] = ()
    shared_counters: tuple[Json, ...] = ()


def cut_pool(name: str, content: PoolContent) -> Pool:
    counters = tuple(
        SliceContent(shared_counters=part) for part in _cut(content.shared_counters, MAX_COUNTER_SETS_PER_SLICE)
    )
    devices = tuple(SliceContent(devices=part) for part in _cut(content.devices, MAX_DEVICES_PER_SLICE))
    return Pool(name, counters + devices or (SliceContent(),))


def _cut(items: tuple[T, ...], size: int) -> Sequence[tuple[T, ...]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def device_json(device: Device) -> Json:
    """A device as in spec.devices."""
    body: Json = {"name": device.name}
    if device.attributes:
        body["attributes"] = {key: _attribute_json(attribute) for key, attribute in device.attributes.items()}
    if device.capacity:
        body["capacity"] = {key: {"value": value} for key, value in device.capacity.items()}
    return body


def _attribute_json(attribute: Attribute) -> Json:
    return {attribute.kind: attribute.value}


def index_digits(slice_count: int) -> int:
    """Width of the hexadecimal index that slice names begin with."""
    return max(_MIN_INDEX_DIGITS, len(f"{max(slice_count - 1, 0):x}"))


def name_prefix(publisher: Publisher, index: int, slice_count: int) -> str:
    """The generateName: sorts by index. The server cuts what follows, so only the index is ever read back."""
    return f"{index:0{index_digits(slice_count)}x}-{publisher.driver}-{publisher.node_name}-"


def index_of(name: str, slice_count: int) -> int | None:
    """The index in a slice's name; None for a name that we wouldn't give, or with another width."""
    digits, dash, _ = name.partition("-")
    if not dash or len(digits) != index_digits(slice_count) or not set(digits) <= set("0123456789abcdef"):
        return None
    return int(digits, 16)


def slice_spec(publisher: Publisher, pool: Pool, index: int, generation: int) -> Json:
    return {
        "driver": publisher.driver,
        "nodeName": publisher.node_name,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(pool.slices)},
        **pool.slices[index].fields(),
    }


def new_slice(publisher: Publisher, pool: Pool, index: int, generation: int) -> Json:
    """An object to create."""
    metadata: Json = {"generateName": name_prefix(publisher, index, len(pool.slices))}
    if publisher.node_uid:
        metadata["ownerReferences"] = [owner_reference(publisher)]
    return slice_object(metadata, slice_spec(publisher, pool, index, generation))


def named_slice(publisher: Publisher, pool: Pool, index: int) -> Json:
    """An object for people, with a fixed name, so that `kubectl create` and `kubectl apply` both take it."""
    name = name_prefix(publisher, index, len(pool.slices)).removesuffix("-")[:_MAX_NAME].rstrip("-.")
    return slice_object({"name": name}, slice_spec(publisher, pool, index, pool.generation))


def owner_reference(publisher: Publisher) -> Json:
    """The slices go with their node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": publisher.node_name,
        "uid": publisher.node_uid,
        "controller": True,
    }


def slice_object(metadata: Json, spec: Json) -> Json:
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": metadata,
        "spec": spec,
    }
