"""The NVML calls that gpuclaim uses, as a Protocol with typed frozen results.

Every method blocks and may hang in the driver: outside tests call it through ``worker.NvmlWorkers``. Every method
raises NvmlError. A handle is opaque, valid until ``shutdown`` or until the GPU is lost, and belongs to the Nvml that
made it. Names follow nvml.h; units are in the field names or docstrings. Source: nvml.h 13.3, reference of
nvidia-ml-py 13.615.
"""

from dataclasses import dataclass
from typing import NewType, Protocol

DeviceHandle = NewType("DeviceHandle", object)
GpuInstanceHandle = NewType("GpuInstanceHandle", object)
ComputeInstanceHandle = NewType("ComputeInstanceHandle", object)

NO_INSTANCE = 0xFFFFFFFF
"""GPU or compute instance id in an event or a process that belongs to no instance."""

EVENT_XID = 0x8
"""nvmlEventTypeXidCriticalError."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as nvmlDeviceGetMemoryInfo (version 1) counts them."""

    total: int
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class PciInfo:
    """``bus_id`` as NVML prints it: 8 hex digits of domain, upper case (``00000000:1B:00.0``)."""

    bus_id: str
    device_id: int
    subsystem_id: int


@dataclass(frozen=True, slots=True)
class Modes:
    """A mode that a reset or a reboot may change: the current and the pending one."""

    current: int
    pending: int


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """nvmlDeviceGetGpuFabricInfoV. ``state`` 0 not supported, 1 not started, 2 in progress, 3 completed; ``status``
    is an nvmlReturn_t; ``cluster_uuid`` in canonical text form, all zeros when the GPU isn't fabric-attached."""

    cluster_uuid: str
    clique_id: int
    state: int
    status: int
    health_mask: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses a GPU; ``used_memory`` in bytes, None where NVML doesn't say."""

    pid: int
    used_memory: int | None
    gpu_instance_id: int = NO_INSTANCE
    compute_instance_id: int = NO_INSTANCE


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A range of memory slices."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class GpuInstanceProfile:
    """nvmlGpuInstanceProfileInfo_v2. ``id`` is the number that create takes; it isn't the enum it was asked with."""

    id: int
    name: str
    slice_count: int
    instance_count: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class ComputeInstanceProfile:
    id: int
    name: str
    slice_count: int
    instance_count: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class GpuInstance:
    handle: GpuInstanceHandle
    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    handle: ComputeInstanceHandle
    id: int
    profile_id: int
    placement: Placement
    mig_uuid: str


@dataclass(frozen=True, slots=True)
class Event:
    """``uuid`` of the physical GPU; ``data`` is the Xid for an Xid event."""

    uuid: str
    type: int
    data: int
    gpu_instance_id: int = NO_INSTANCE
    compute_instance_id: int = NO_INSTANCE


class EventSet(Protocol):
    """nvmlEventSet_t."""

    def register(self, device: DeviceHandle, mask: int) -> None: ...

    def wait(self, timeout_ms: int) -> Event:
        """The next event. Raises NvmlError: TIMEOUT when nothing happened, GPU_IS_LOST when a device died."""

    def free(self) -> None: ...


class Nvml(Protocol):
    """One NVML session."""

    def init(self) -> None:
        """Begin; doesn't fail for want of GPUs. LIBRARY_NOT_FOUND and DRIVER_NOT_LOADED may heal: try again."""

    def shutdown(self) -> None: ...

    def driver_version(self) -> str: ...

    def nvml_version(self) -> str: ...

    def cuda_driver_version(self) -> int:
        """1000 * major + 10 * minor."""

    def device_count(self) -> int: ...

    def device_by_index(self, index: int) -> DeviceHandle: ...

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        """A physical GPU or a MIG device (``MIG-...``)."""

    # --- identity ---
    def uuid(self, device: DeviceHandle) -> str: ...

    def name(self, device: DeviceHandle) -> str: ...

    def index(self, device: DeviceHandle) -> int: ...

    def minor_number(self, device: DeviceHandle) -> int: ...

    def serial(self, device: DeviceHandle) -> str: ...

    def module_id(self, device: DeviceHandle) -> int: ...

    def brand(self, device: DeviceHandle) -> int: ...

    def architecture(self, device: DeviceHandle) -> int: ...

    def cuda_compute_capability(self, device: DeviceHandle) -> tuple[int, int]: ...

    def pci_info(self, device: DeviceHandle) -> PciInfo: ...

    # --- memory, modes, fabric ---
    def memory_info(self, device: DeviceHandle) -> Memory: ...

    def numa_node_id(self, device: DeviceHandle) -> int:
        """NUMA node of the GPU's own memory (coherent parts only)."""

    def addressing_mode(self, device: DeviceHandle) -> int:
        """0 none, 1 HMM, 2 ATS."""

    def ecc_mode(self, device: DeviceHandle) -> Modes: ...

    def compute_mode(self, device: DeviceHandle) -> int: ...

    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None: ...

    def persistence_mode(self, device: DeviceHandle) -> int: ...

    def virtualization_mode(self, device: DeviceHandle) -> int: ...

    def fabric_info(self, device: DeviceHandle) -> FabricInfo: ...

    def nvlink_state(self, device: DeviceHandle, link: int) -> int: ...

    def nvlink_remote_bus_id(self, device: DeviceHandle, link: int) -> str: ...

    def recovery_action(self, device: DeviceHandle) -> int:
        """Field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset."""

    def processes(self, device: DeviceHandle) -> tuple[Process, ...]:
        """Compute, graphics and MPS processes together, each pid once per instance."""

    # --- MIG ---
    def mig_mode(self, device: DeviceHandle) -> Modes: ...

    def set_mig_mode(self, device: DeviceHandle, mode: int) -> int:
        """Returns the activation status, an nvmlReturn_t: 0 when the mode is in force."""

    def max_mig_device_count(self, device: DeviceHandle) -> int: ...

    def mig_device_by_index(self, device: DeviceHandle, index: int) -> DeviceHandle:
        """NOT_FOUND for a gap: indices are sparse."""

    def gpu_instance_id(self, mig_device: DeviceHandle) -> int: ...

    def compute_instance_id(self, mig_device: DeviceHandle) -> int: ...

    def gpu_instance_profile(self, device: DeviceHandle, profile_enum: int) -> GpuInstanceProfile:
        """NOT_SUPPORTED for an enum that this part doesn't offer; enums run from 0 to 0x11."""

    def gpu_instance_possible_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]: ...

    def gpu_instance_remaining_capacity(self, device: DeviceHandle, profile_id: int) -> int: ...

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstance, ...]: ...

    def create_gpu_instance(
        self, device: DeviceHandle, profile_id: int, placement: Placement | None = None
    ) -> GpuInstance: ...

    def destroy_gpu_instance(self, gpu_instance: GpuInstanceHandle) -> None: ...

    def compute_instance_profile(
        self, gpu_instance: GpuInstanceHandle, profile_enum: int
    ) -> ComputeInstanceProfile: ...

    def compute_instances(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstance, ...]: ...

    def create_compute_instance(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> ComputeInstance: ...

    def destroy_compute_instance(self, compute_instance: ComputeInstanceHandle) -> None: ...

    # --- events ---
    def supported_event_types(self, device: DeviceHandle) -> int: ...

    def create_event_set(self) -> EventSet: ...
