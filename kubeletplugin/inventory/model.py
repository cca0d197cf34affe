"""What the rest of the agent knows of the hardware: devices, and GPUs withheld with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from kubeletplugin.inventory import pci


class DeviceKind(StrEnum):
    GPU = "gpu"
    MIG = "mig"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A typed attribute of a ResourceSlice device; ``value`` is str for string and version, int or bool else."""

    kind: Literal["string", "int", "bool", "version"]
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class MigIdentity:
    """Where a MIG partition sits on its GPU."""

    profile: str
    profile_id: int
    placement_start: int
    placement_size: int
    gpu_instance_id: int
    compute_instance_id: int


@dataclass(frozen=True, slots=True)
class Device:
    """One device, allocatable unless ``problem`` says otherwise.

    ``uuid`` is the device's own (``GPU-...`` or ``MIG-...``), ``gpu_uuid`` the physical GPU's. ``pci_bus_id`` in
    sysfs form (``0000:1b:00.0``). ``attributes`` and ``capacity`` are in publishing order; a capacity is a
    Kubernetes quantity as the API server would print it. ``memory_bytes`` is what ``capacity`` says of memory.

    ``problem`` is empty for a device seen whole in this look. Otherwise the device is here only because a claim, a
    hold or a drain still refers to its name: its facts are the last known ones, and nobody new may be given it.
    """

    name: str
    kind: DeviceKind
    uuid: str
    gpu_uuid: str
    minor: int
    index: int
    pci_bus_id: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, str]
    mig: MigIdentity | None = None
    memory_bytes: int = 0
    problem: str = ""

    @property
    def place(self) -> tuple[tuple[int, int, int, int], int, int]:
        """Sort key: bus order, then placement on the GPU."""
        start, size = (self.mig.placement_start, self.mig.placement_size) if self.mig else (0, 0)
        return (pci.sort_key(self.pci_bus_id), start, size)


@dataclass(frozen=True, slots=True)
class WithheldGpu:
    """A GPU that isn't published, or whose partitions aren't, and why, in words for an Event and `gpuclaim status`.

    ``uuid`` is empty where even that can't be read; ``pci_bus_id`` likewise.
    """

    index: int
    uuid: str
    pci_bus_id: str
    reason: str
    excluded: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know that costs no device: a dropped attribute, an exclusion that matches nothing.

    ``uuid`` of the GPU it concerns, empty for the node.
    """

    uuid: str
    text: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """One look at the node. ``devices`` are ordered: GPUs by PCI address, partitions by placement.

    ``answered`` holds the UUIDs of the physical GPUs for which NVML answered everything that a device needs in this
    look, ``lost`` those of GPUs for which it said that they are gone (GPU_IS_LOST) or which were there before and are
    not enumerated any more, and of partitions in use that were destroyed.
    """

    driver_version: str
    devices: tuple[Device, ...] = ()
    withheld: tuple[WithheldGpu, ...] = ()
    answered: frozenset[str] = field(default_factory=frozenset)
    lost: frozenset[str] = field(default_factory=frozenset)
    notices: tuple[Notice, ...] = ()

    def by_name(self, name: str) -> Device | None:
        return next((device for device in self.devices if device.name == name), None)

    def by_uuid(self, uuid: str) -> Device | None:
        return next((device for device in self.devices if device.uuid == uuid), None)


class NameBindings(Protocol):
    """Which UUID a device name means (kept in the ledger by the active instance)."""

    async def bindings(self) -> Mapping[str, str]:
        """Device name to device UUID, every binding in force."""

    async def referenced_names(self) -> frozenset[str]:
        """Names that a claim, a hold or a drain refers to: they never move to another UUID."""

    async def set_bindings(self, bindings: Mapping[str, str]) -> None:
        """Replaces all bindings; a name that is referenced must be among them, unmoved (ValueError)."""
