"""The names that users write: driver, attributes, capacities, classes, CDI kind.

Compatible on purpose with NVIDIA's DRA driver, so that claims, CEL and pod specs work unchanged. A name without a
domain belongs to the driver's own domain.
"""

DRIVER_NAME = "gpu.nvidia.com"
CONFIG_API_VERSION = "resource.nvidia.com/v1beta1"
CDI_VENDOR = "k8s.gpu.nvidia.com"
CDI_CLAIM_CLASS = "claim"
CDI_DRIVER_CLASS = "driver"

TYPE_GPU = "gpu"
TYPE_MIG = "mig"

# Attributes, in the order in which they are kept when a device would pass MAX_KEYS: the peer's first.
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

CAPACITY_MEMORY = "memory"
CAPACITY_MULTIPROCESSORS = "multiprocessors"
CAPACITY_COPY_ENGINES = "copyEngines"
CAPACITY_DECODERS = "decoders"
CAPACITY_ENCODERS = "encoders"
CAPACITY_JPEG_ENGINES = "jpegEngines"
CAPACITY_OFA_ENGINES = "ofaEngines"
CAPACITY_MEMORY_SLICE = "memorySlice{}"

MAX_KEYS = 32
"""Attributes and capacities of one device together (resource.k8s.io/v1)."""
