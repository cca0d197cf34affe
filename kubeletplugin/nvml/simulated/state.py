"""The state of one simulated node, and the format of the file that holds it.

Everything that may change on a simulated machine is in one JSON file, so that two agents, the command line, a test and
a person with an editor see the same machine. ``store.StateStore`` reads and writes it. By hand:

- ``gpus[n]`` is the board in slot n of the machine profile, whatever its NVML index is now. ``present: false`` takes
  it off the bus (it is no longer enumerated), ``lost: true`` lets it fall off the bus (enumerated, every call answers
  GPU_IS_LOST). ``uuid``, ``serial`` and ``minor`` may be edited (a swapped board, another numbering);
  ``minorAfterModeChange`` becomes the minor at the next change of the MIG mode. ``processes`` is the table of pids;
  ``fabric`` and ``recoveryAction`` stand for the profile's values unless null.
- ``order`` lists the slots in NVML's index order.
- ``faults``: ``{"gpu": 3, "call": "memory_info", "code": "GPU_IS_LOST"}`` fails for ever, with ``"times": 2`` twice.
  ``"hang": true`` hangs the call until the fault is removed from the file, ``"hang": 5`` for 5 seconds, after which
  it fails with ``code`` if there is one and works otherwise. ``gpu`` is a slot, a UUID, a PCI address, ``"*"`` for
  every GPU, or ``"system"`` for calls without a device. ``call`` is a method of the Nvml Protocol, its C name, or
  ``"*"``. The first entry that matches counts.
- ``events``: append ``{"gpu": 3, "xid": 79}``; ``seq`` is filled in by whoever reads it first. Other types with
  ``type`` (the NVML bit) and ``data``; ``gpuInstance`` and ``computeInstance`` where it concerns a partition.
- ``driver.loaded: false`` is a driver that isn't there yet. A changed ``driver.version`` is a driver exchanged under
  running programs: their sessions answer LIB_RM_VERSION_MISMATCH until they initialise NVML again.

Keys are strict; a file that doesn't parse leaves every reader with the last good state.
"""

import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from kubeletplugin.nvml.api import EVENT_XID, NO_INSTANCE
from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.simulated.calls import method_of
from kubeletplugin.nvml.simulated.schema import MachineProfile, camel

SYSTEM = "system"
EVERY_GPU = "*"
EVENTS_KEPT = 256


class Entry(BaseModel):
    model_config = ConfigDict(alias_generator=camel, extra="forbid", strict=True, populate_by_name=True)


def _code(value: object) -> object:
    if isinstance(value, str):
        if value not in NvmlCode.__members__:
            raise ValueError(f"no NVML code is called {value}")
        return NvmlCode[value].value
    return value


def _code_name(value: int | None) -> str | int | None:
    return NvmlCode(value).name if value is not None and value in NvmlCode._value2member_map_ else value


def _known_call(call: str) -> str:
    try:
        method_of(call)
    except Exception as e:
        raise ValueError(str(e)) from e
    return call


Code = Annotated[int | None, BeforeValidator(_code), PlainSerializer(_code_name)]
Call = Annotated[str, BeforeValidator(_known_call)]


class DriverState(Entry):
    loaded: bool = True
    version: str


class ComputeInstanceState(Entry):
    id: int
    profile_id: int
    start: int
    size: int
    mig_index: int
    uuid: str
    compute_mode: int = 0


class GpuInstanceState(Entry):
    id: int
    profile_id: int
    start: int
    size: int
    compute_instances: list[ComputeInstanceState] = Field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.size


class ProcessState(Entry):
    """``used_memory`` in bytes; null where NVML wouldn't say."""

    pid: int
    used_memory: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class FabricState(Entry):
    state: int = 3
    status: int = 0
    clique_id: int = 0
    cluster_uuid: str = "00000000-0000-0000-0000-000000000000"
    health_mask: int = 0


class GpuState(Entry):
    slot: int
    pci_bus_id: str
    uuid: str
    serial: str | None
    minor: int
    minor_after_mode_change: int | None = None
    present: bool = True
    lost: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    gpu_instances: list[GpuInstanceState] = Field(default_factory=list)
    compute_mode: int = 0
    persistence: bool = True
    recovery_action: int | None = None
    fabric: FabricState | None = None
    processes: list[ProcessState] = Field(default_factory=list)

    def gpu_instance(self, instance_id: int) -> GpuInstanceState | None:
        return next((entry for entry in self.gpu_instances if entry.id == instance_id), None)

    def compute_instances(self) -> list[tuple[GpuInstanceState, ComputeInstanceState]]:
        return [(parent, child) for parent in self.gpu_instances for child in parent.compute_instances]

    def is_called(self, selector: int | str) -> bool:
        """``selector`` is a slot, a UUID or a PCI address in NVML's or sysfs' form."""
        if isinstance(selector, int):
            return selector == self.slot
        return selector in (str(self.slot), self.uuid) or bus_id(selector) == bus_id(self.pci_bus_id)


class FaultState(Entry):
    gpu: int | str = EVERY_GPU
    call: Call = "*"
    code: Code = None
    times: int | None = None
    hang: bool | float = False

    @property
    def identity(self) -> tuple[int | str, str, int | None, bool | float]:
        """What stays the same while ``times`` counts down."""
        return (self.gpu, self.call, self.code, self.hang)


class EventState(Entry):
    seq: int | None = None
    gpu: int | str
    xid: int | None = None
    type: int = EVENT_XID
    data: int = 0
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class Majors(Entry):
    """Major device numbers as /proc/devices lists them; a driver may get others at the next boot."""

    frontend: int = 195
    uvm: int = 510
    caps: int = 236


class TreeState(Entry):
    """A host tree that follows this state; see ``tree.py``."""

    root: str
    nodes: Literal["none", "placeholder", "null", "real"]


class NodeState(Entry):
    format: Literal[1] = 1
    machine: str
    boots: int = 1
    boot_id: str
    driver: DriverState
    order: list[int]
    gpus: list[GpuState]
    faults: list[FaultState] = Field(default_factory=list)
    events: list[EventState] = Field(default_factory=list)
    next_event: int = 1
    majors: Majors = Field(default_factory=Majors)
    tree: TreeState | None = None

    def enumerated(self) -> list[GpuState]:
        """Present GPUs in NVML's index order; slots that ``order`` leaves out come last."""
        rank = {slot: position for position, slot in enumerate(self.order)}
        present = [gpu for gpu in self.gpus if gpu.present]
        return sorted(present, key=lambda gpu: (rank.get(gpu.slot, len(rank)), gpu.slot))

    def find(self, selector: int | str) -> GpuState | None:
        return next((gpu for gpu in self.gpus if gpu.is_called(selector)), None)

    def number_events(self) -> None:
        """Give events without a number the next ones, in the order of the file, and drop the oldest."""
        for event in self.events:
            if event.seq is None:
                event.seq = self.next_event
                self.next_event += 1
        del self.events[:-EVENTS_KEPT]


def bus_id(text: str) -> str:
    """A PCI address in one form: 8 hex digits of domain, upper case."""
    domain, _, rest = text.upper().partition(":")
    return f"{domain.zfill(8)}:{rest}"


def first_state(machine: str, profile: MachineProfile) -> NodeState:
    """The node as it comes up: MIG off, nothing running, no faults."""
    return NodeState(
        machine=machine,
        boot_id=str(uuid.uuid4()),
        driver=DriverState(version=profile.driver.version),
        order=[gpu.index for gpu in profile.gpus],
        gpus=[
            GpuState(
                slot=gpu.index,
                pci_bus_id=gpu.pci_bus_id,
                uuid=gpu.uuid,
                serial=gpu.serial,
                minor=gpu.minor,
                compute_mode=profile.models[gpu.model].modes.compute.nvml or 0,
                persistence=profile.models[gpu.model].modes.persistence == "Enabled",
            )
            for gpu in profile.gpus
        ],
    )
