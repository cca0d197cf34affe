"""Reads one GPU through NVML, top to bottom, in that GPU's worker thread.

Two steps: who it is (so that whatever goes wrong later is bound to the right GPU, and an excluded GPU isn't touched
further), then all else. Values that every published device must carry are read without a net: an NvmlError from them
withholds the GPU. All other values may be missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kubeletplugin.errors import AgentError
from kubeletplugin.inventory import pci
from kubeletplugin.inventory.facts import UNIFIED_MEMORY_PARTS, GpuFacts, NvlinkFacts
from kubeletplugin.inventory.getters import optional, unless_unsupported
from kubeletplugin.inventory.mig import read_partitions
from kubeletplugin.inventory.nvlink import read_nvlink
from kubeletplugin.inventory.sysfs import Sysfs
from kubeletplugin.nvml.api import DeviceHandle, Nvml
from kubeletplugin.nvml.errors import NvmlError

UNKNOWN = "Unknown"

BRANDS: Mapping[int, str] = MappingProxyType(
    {
        1: "Quadro",
        2: "Tesla",
        3: "NVS",
        4: "Grid",
        5: "GeForce",
        6: "Titan",
        7: "NvidiaVApps",
        8: "NvidiaVPC",
        9: "NvidiaVCS",
        10: "NvidiaVWS",
        11: "NvidiaCloudGaming",
        12: "QuadroRTX",
        13: "NvidiaRTX",
        14: "Nvidia",
        15: "GeForceRTX",
        16: "TitanRTX",
    }
)
ARCHITECTURES: Mapping[int, str] = MappingProxyType(
    {
        2: "Kepler",
        3: "Maxwell",
        4: "Pascal",
        5: "Volta",
        6: "Turing",
        7: "Ampere",
        8: "Ada Lovelace",
        9: "Hopper",
        10: "Blackwell",
        13: "Rubin",
    }
)
ADDRESSING_MODES: Mapping[int, str] = MappingProxyType({0: "None", 1: "HMM", 2: "ATS"})

_MIG_ON = 1


class ProbeError(AgentError):
    """A GPU can't be published as it is; the text is the reason that people see."""


@dataclass(frozen=True, slots=True)
class Identified:
    """A GPU that answered who it is. ``problem`` says what of it couldn't be read; the GPU is then withheld."""

    handle: DeviceHandle
    uuid: str
    pci_bus_id: str
    problem: NvmlError | None = None


def identify(nvml: Nvml, index: int) -> Identified:
    """Raises NvmlError when not even a handle can be had."""
    handle = nvml.device_by_index(index)
    problem: NvmlError | None = None
    uuid = address = ""
    try:
        uuid = nvml.uuid(handle)
    except NvmlError as error:
        problem = error
    try:
        bus_id = nvml.pci_info(handle).bus_id
        address = pci.normalise(bus_id) or bus_id.lower()
    except NvmlError as error:
        problem = problem or error
    return Identified(handle, uuid, address, problem)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a GPU's facts need from outside NVML. ``system_memory`` gives the host's MemTotal in bytes."""

    sysfs: Sysfs
    system_memory: Callable[[], int]


def read_gpu(nvml: Nvml, index: int, gpu: Identified, around: Surroundings) -> GpuFacts:
    """Everything else. Raises NvmlError or ProbeError when a value that each device must carry can't be had."""
    device = gpu.handle
    remarks: list[str] = []
    capability = nvml.cuda_compute_capability(device)
    own_memory = _own_memory(nvml, device, capability)
    mig = unless_unsupported(nvml.mig_mode, device)
    partitions = None
    if mig is not None and mig.current == _MIG_ON:
        partitions = read_partitions(nvml, device, own_memory, remarks)
    if mig is not None and mig.current != mig.pending:
        remarks.append(f"MIG mode changes to {'on' if mig.pending == _MIG_ON else 'off'} at the GPU's next reset")
    ecc = optional("eccEnabled", remarks, nvml.ecc_mode, device)
    addressing = optional("addressingMode", remarks, nvml.addressing_mode, device)
    return GpuFacts(
        index=index,
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        minor=nvml.minor_number(device),
        product_name=nvml.name(device),
        brand=_named(nvml.brand, device, BRANDS),
        architecture=_named(nvml.architecture, device, ARCHITECTURES),
        cuda_compute_capability=capability,
        memory_bytes=own_memory or _system_memory(around),
        addressing_mode=None if addressing is None else ADDRESSING_MODES.get(addressing),
        module_id=optional("gpuModuleID", remarks, nvml.module_id, device) or None,
        ecc_enabled=None if ecc is None else bool(ecc.current),
        pcie_root=around.sysfs.pcie_root(gpu.pci_bus_id),
        numa_node=around.sysfs.numa_node(gpu.pci_bus_id),
        nvlink=NvlinkFacts() if partitions is not None else read_nvlink(nvml, device, remarks),
        partitions=partitions,
        remarks=tuple(remarks),
    )


def _own_memory(nvml: Nvml, device: DeviceHandle, capability: tuple[int, int]) -> int:
    """Bytes of the GPU's own memory; 0 on a part that is known to have none."""
    unified = capability in UNIFIED_MEMORY_PARTS
    try:
        total = nvml.memory_info(device).total
    except NvmlError as error:
        if not (error.unsupported and unified):
            raise
        return 0
    if total <= 0 and not unified:
        raise ProbeError("NVML reports no memory, and the part isn't known to share the system's")
    return max(total, 0)


def _system_memory(around: Surroundings) -> int:
    try:
        return around.system_memory()
    except (OSError, ValueError) as error:
        raise ProbeError(f"read the system's memory, which this GPU shares: {error}") from error


def _named(getter: Callable[[DeviceHandle], int], device: DeviceHandle, names: Mapping[int, str]) -> str:
    """`Unknown` belongs to the vocabulary: newer parts and odd guests still publish the key."""
    value = unless_unsupported(getter, device)
    return UNKNOWN if value is None else names.get(value, UNKNOWN)
