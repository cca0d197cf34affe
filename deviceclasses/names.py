"""The names that users write: driver, attributes, capacities, classes, CDI kind.

Compatible on purpose with NVIDIA's DRA driver, so that claims, CEL and pod specs work unchanged. A name without a
domain belongs to the driver's own domain.
"""

from collections.abc import Mapping
from types import MappingProxyType

DRIVER_NAME = "gpu.nvidia.com"
CONFIG_API_VERSION = "resource.nvidia.com/v1beta1"
CDI_VENDOR = "k8s.gpu.nvidia.com"
CDI_CLAIM_CLASS = "claim"
CDI_DRIVER_CLASS = "driver"

WAKES_ANNOTATION = "gpu.nvidia.com/wakes"
"""On a pod: how often the node's agent has touched it so that the kubelet tries to prepare its claims again at once."""

TYPE_GPU = "gpu"
TYPE_MIG = "mig"

# Attributes: the peer's first.
ATTRIBUTE_TYPE = "type"
ATTRIBUTE_UUID = "uuid"
ATTRIBUTE_PARENT_UUID = "parentUUID"
ATTRIBUTE_PROFILE = "profile"
ATTRIBUTE_PRODUCT_NAME = "productName"
ATTRIBUTE_BRAND = "brand"
ATTRIBUTE_ARCHITECTURE = "architecture"
ATTRIBUTE_CUDA_COMPUTE_CAPABILITY = "cudaComputeCapability"
ATTRIBUTE_DRIVER_VERSION = "driverVersion"
ATTRIBUTE_CUDA_DRIVER_VERSION = "cudaDriverVersion"
ATTRIBUTE_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
ATTRIBUTE_NUMA_NODE = "resource.kubernetes.io/numaNode"
ATTRIBUTE_ADDRESSING_MODE = "addressingMode"
ATTRIBUTE_GPU_MODULE_ID = "gpuModuleID"
# Ours
ATTRIBUTE_INDEX = "index"
ATTRIBUTE_MINOR = "minor"
ATTRIBUTE_UNIFIED_MEMORY = "unifiedMemory"
ATTRIBUTE_ECC_ENABLED = "eccEnabled"
ATTRIBUTE_NVLINK_DOMAIN = "nvlinkDomain"
ATTRIBUTE_CLIQUE_ID = "cliqueID"
ATTRIBUTE_DRIVER_VERSION_RAW = "driverVersionRaw"

_CORE_OF_ALL = frozenset(
    {
        ATTRIBUTE_TYPE,
        ATTRIBUTE_UUID,
        ATTRIBUTE_PRODUCT_NAME,
        ATTRIBUTE_BRAND,
        ATTRIBUTE_ARCHITECTURE,
        ATTRIBUTE_CUDA_COMPUTE_CAPABILITY,
        ATTRIBUTE_DRIVER_VERSION,
        ATTRIBUTE_CUDA_DRIVER_VERSION,
        ATTRIBUTE_PCI_BUS_ID,
    }
)

CORE_ATTRIBUTES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        TYPE_GPU: _CORE_OF_ALL,
        TYPE_MIG: _CORE_OF_ALL | {ATTRIBUTE_PARENT_UUID, ATTRIBUTE_PROFILE},
    }
)
"""What every published device of a type carries, whatever the hardware: a selector may name these without has()."""

ATTRIBUTE_KEEP_ORDER: tuple[str, ...] = (
    ATTRIBUTE_TYPE,
    ATTRIBUTE_UUID,
    ATTRIBUTE_PARENT_UUID,
    ATTRIBUTE_PROFILE,
    ATTRIBUTE_PRODUCT_NAME,
    ATTRIBUTE_BRAND,
    ATTRIBUTE_ARCHITECTURE,
    ATTRIBUTE_CUDA_COMPUTE_CAPABILITY,
    ATTRIBUTE_DRIVER_VERSION,
    ATTRIBUTE_CUDA_DRIVER_VERSION,
    ATTRIBUTE_PCI_BUS_ID,
    ATTRIBUTE_PCIE_ROOT,
    ATTRIBUTE_NUMA_NODE,
    ATTRIBUTE_ADDRESSING_MODE,
    ATTRIBUTE_GPU_MODULE_ID,
    ATTRIBUTE_INDEX,
    ATTRIBUTE_MINOR,
    ATTRIBUTE_UNIFIED_MEMORY,
    ATTRIBUTE_ECC_ENABLED,
    ATTRIBUTE_NVLINK_DOMAIN,
    ATTRIBUTE_CLIQUE_ID,
    ATTRIBUTE_DRIVER_VERSION_RAW,
)
"""Publishing order. Where a device would pass MAX_KEYS the last key gives way first, on all devices of its type on the
node alike; core keys and capacities never do."""

VERSION_ATTRIBUTES = frozenset(
    {ATTRIBUTE_CUDA_COMPUTE_CAPABILITY, ATTRIBUTE_DRIVER_VERSION, ATTRIBUTE_CUDA_DRIVER_VERSION}
)
"""Published with the type `version`: a selector compares them with semver()."""

CAPACITY_MEMORY = "memory"
CAPACITY_MULTIPROCESSORS = "multiprocessors"
CAPACITY_COPY_ENGINES = "copyEngines"
CAPACITY_DECODERS = "decoders"
CAPACITY_ENCODERS = "encoders"
CAPACITY_JPEG_ENGINES = "jpegEngines"
CAPACITY_OFA_ENGINES = "ofaEngines"
CAPACITY_MEMORY_SLICE = "memorySlice{}"

CORE_CAPACITIES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        TYPE_GPU: frozenset({CAPACITY_MEMORY}),
        TYPE_MIG: frozenset(
            {
                CAPACITY_MEMORY,
                CAPACITY_MULTIPROCESSORS,
                CAPACITY_COPY_ENGINES,
                CAPACITY_DECODERS,
                CAPACITY_ENCODERS,
                CAPACITY_JPEG_ENGINES,
                CAPACITY_OFA_ENGINES,
            }
        ),
    }
)
"""As CORE_ATTRIBUTES, for capacities."""

MAX_KEYS = 32
"""Attributes and capacities of one device together (resource.k8s.io/v1)."""
