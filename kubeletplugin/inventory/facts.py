"""What one look reads of one GPU, before anything is named or published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

UNIFIED_MEMORY_PARTS: Mapping[tuple[int, int], str] = MappingProxyType(
    {
        (5, 3): "Tegra X1",
        (6, 2): "Tegra X2",
        (7, 2): "Xavier",
        (8, 7): "Orin",
        (10, 1): "Thor before CUDA 13",
        (11, 0): "Thor",
        (12, 1): "GB10",
    }
)
"""Compute capabilities that NVIDIA gives only to chips whose GPU has no memory of its own. A fact about the silicon,
since "NVML reports no memory" alone can also be a fault, and a faulty H100 must not be published with the host's
memory."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is the same for every GPU. Versions are strict semver; ``driver_version_raw`` is as NVML printed it."""

    driver_version: str
    driver_version_raw: str
    cuda_driver_version: str


@dataclass(frozen=True, slots=True)
class NvlinkFacts:
    """What a GPU says of its NVLink neighbourhood.

    ``cluster_uuid`` is set, with ``clique_id``, on a GPU that is attached to a multi-node fabric; ``box_fabric`` on
    one whose NVSwitch fabric is up and ends at this node; ``remote_ends`` holds the PCI addresses at the other end of
    its active links, for machines without fabric calls.
    """

    cluster_uuid: str = ""
    clique_id: int = 0
    box_fabric: bool = False
    remote_ends: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A GPU instance with the compute instance that fills it."""

    uuid: str
    profile: str
    profile_id: int
    placement_start: int
    placement_size: int
    gpu_instance_id: int
    compute_instance_id: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU. None means that this machine has no such value. ``partitions`` is None while MIG is off.

    ``remarks`` are values that were left out and why, in words.
    """

    index: int
    uuid: str
    pci_bus_id: str
    minor: int
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: tuple[int, int]
    memory_bytes: int
    addressing_mode: str | None = None
    module_id: int | None = None
    ecc_enabled: bool | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    nvlink: NvlinkFacts = field(default_factory=NvlinkFacts)
    partitions: tuple[PartitionFacts, ...] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def unified_memory(self) -> bool:
        return self.cuda_compute_capability in UNIFIED_MEMORY_PARTS
