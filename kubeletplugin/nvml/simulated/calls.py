"""The C functions behind each method of the Nvml Protocol.

Faults, ``notSupported`` and ``missingSymbols`` name calls: a fault may use the Protocol's name or any C name, the
profile uses the names of nvidia-ml-py's functions. The first name of a call is the one that its errors carry; where a
driver lacks it, the next one stands in.
"""

from kubeletplugin.nvml.simulated.profile import MachineError, nearest

C_NAMES: dict[str, tuple[str, ...]] = {
    "init": ("nvmlInitWithFlags", "nvmlInit", "nvmlInit_v2"),
    "shutdown": ("nvmlShutdown",),
    "driver_version": ("nvmlSystemGetDriverVersion",),
    "nvml_version": ("nvmlSystemGetNVMLVersion",),
    "cuda_driver_version": ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"),
    "device_count": ("nvmlDeviceGetCount", "nvmlDeviceGetCount_v2"),
    "device_by_index": ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"),
    "device_by_uuid": ("nvmlDeviceGetHandleByUUID",),
    "uuid": ("nvmlDeviceGetUUID",),
    "name": ("nvmlDeviceGetName",),
    "index": ("nvmlDeviceGetIndex",),
    "minor_number": ("nvmlDeviceGetMinorNumber",),
    "serial": ("nvmlDeviceGetSerial",),
    "module_id": ("nvmlDeviceGetModuleId",),
    "brand": ("nvmlDeviceGetBrand",),
    "architecture": ("nvmlDeviceGetArchitecture",),
    "cuda_compute_capability": ("nvmlDeviceGetCudaComputeCapability",),
    "pci_info": ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v3"),
    "memory_info": ("nvmlDeviceGetMemoryInfo",),
    "numa_node_id": ("nvmlDeviceGetNumaNodeId",),
    "addressing_mode": ("nvmlDeviceGetAddressingMode",),
    "ecc_mode": ("nvmlDeviceGetEccMode",),
    "compute_mode": ("nvmlDeviceGetComputeMode",),
    "set_compute_mode": ("nvmlDeviceSetComputeMode",),
    "persistence_mode": ("nvmlDeviceGetPersistenceMode",),
    "virtualization_mode": ("nvmlDeviceGetVirtualizationMode",),
    "fabric_info": ("nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"),
    "nvlink_state": ("nvmlDeviceGetNvLinkState",),
    "nvlink_remote_bus_id": ("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetNvLinkRemotePciInfo_v2"),
    "recovery_action": ("nvmlDeviceGetFieldValues",),
    "processes": (
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
    ),
    "mig_mode": ("nvmlDeviceGetMigMode",),
    "set_mig_mode": ("nvmlDeviceSetMigMode",),
    "max_mig_device_count": ("nvmlDeviceGetMaxMigDeviceCount",),
    "mig_device_by_index": ("nvmlDeviceGetMigDeviceHandleByIndex",),
    "gpu_instance_id": ("nvmlDeviceGetGpuInstanceId",),
    "compute_instance_id": ("nvmlDeviceGetComputeInstanceId",),
    "gpu_instance_profile": ("nvmlDeviceGetGpuInstanceProfileInfo",),
    "gpu_instance_possible_placements": ("nvmlDeviceGetGpuInstancePossiblePlacements",),
    "gpu_instance_remaining_capacity": ("nvmlDeviceGetGpuInstanceRemainingCapacity",),
    "gpu_instances": ("nvmlDeviceGetGpuInstances",),
    "create_gpu_instance": ("nvmlDeviceCreateGpuInstance", "nvmlDeviceCreateGpuInstanceWithPlacement"),
    "destroy_gpu_instance": ("nvmlGpuInstanceDestroy",),
    "compute_instance_profile": ("nvmlGpuInstanceGetComputeInstanceProfileInfo",),
    "compute_instances": ("nvmlGpuInstanceGetComputeInstances",),
    "create_compute_instance": ("nvmlGpuInstanceCreateComputeInstance",),
    "destroy_compute_instance": ("nvmlComputeInstanceDestroy",),
    "supported_event_types": ("nvmlDeviceGetSupportedEventTypes",),
    "create_event_set": ("nvmlEventSetCreate",),
    "register": ("nvmlDeviceRegisterEvents",),
    "wait": ("nvmlEventSetWait", "nvmlEventSetWait_v2"),
    "free": ("nvmlEventSetFree",),
}

ANY_CALL = "*"

_METHODS = {c_name: method for method, c_names in C_NAMES.items() for c_name in c_names}

ON_MIG_DEVICES = frozenset(
    {
        "uuid",
        "name",
        "index",
        "brand",
        "architecture",
        "cuda_compute_capability",
        "memory_info",
        "compute_mode",
        "set_compute_mode",
        "processes",
        "gpu_instance_id",
        "compute_instance_id",
    }
)
"""What NVML answers for a MIG device handle; the rest is INVALID_ARGUMENT and must be asked of the parent."""


def c_name(method: str) -> str:
    return C_NAMES[method][0]


def method_of(call: str) -> str:
    """The Protocol's name for a call given by either name. Raises MachineError that names the nearest."""
    if call == ANY_CALL or call in C_NAMES:
        return call
    if call in _METHODS:
        return _METHODS[call]
    raise MachineError(f"find NVML call {call!r}: no such call{nearest(call, (*C_NAMES, *_METHODS))}")
