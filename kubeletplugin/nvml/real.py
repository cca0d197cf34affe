"""The Nvml of a machine with a driver, over nvidia-ml-py.

One session per process is in force at a time (see binding.py). ``init`` looks the library up and loads it anew, so that
``shutdown`` and ``init`` are enough to go on after a driver reload or upgrade; handles from before are refused with
UNINITIALIZED. Calls of one session may come from several threads.
"""

import ctypes
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from kubeletplugin.nvml.api import DeviceHandle, EventSet, FabricInfo, Memory, Modes, Nvml, PciInfo, Process
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.library import LIBRARY_NAME, find_library
from kubeletplugin.nvml.real_events import RealEventSet
from kubeletplugin.nvml.real_mig import MigCalls

_FIELD_RECOVERY_ACTION = 230
_VALUE_TYPE_DOUBLE = 0

_PROCESS_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_PROCESS_TRIES = 5
"""pynvml asks for the count, then for the list with room for twice as many and five; a list that outgrows even that
between the two calls (a job starting) is asked for again."""


def open_real(roots: Sequence[Path], name: str = LIBRARY_NAME) -> Nvml:
    """The Nvml whose library lies under one of ``roots``; the search is made at every ``init``."""
    return RealNvml(lambda: find_library(roots, name).require())


class RealNvml(MigCalls):
    """Nvml over the library that ``locate`` returns; ``locate`` raises NvmlError while there is none."""

    def __init__(self, locate: Callable[[], Path]) -> None:
        super().__init__(locate)

    def init(self) -> None:
        self._open()
        try:
            self._call("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS)
        except NvmlError:
            self._close()
            raise

    def shutdown(self) -> None:
        """The session is over even if NVML refuses."""
        try:
            self._call("nvmlShutdown")
        finally:
            self._close()

    def driver_version(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def nvml_version(self) -> str:
        return str(self._call("nvmlSystemGetNVMLVersion"))

    def cuda_driver_version(self) -> int:
        return int(self._call("nvmlSystemGetCudaDriverVersion_v2"))

    def device_count(self) -> int:
        return int(self._call("nvmlDeviceGetCount"))

    def device_by_index(self, index: int) -> DeviceHandle:
        return DeviceHandle(self._call_for_handle("nvmlDeviceGetHandleByIndex", index))

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        # As bytes: not every version of nvidia-ml-py encodes this argument.
        return DeviceHandle(self._call_for_handle("nvmlDeviceGetHandleByUUID", uuid.encode()))

    # --- identity ---
    def uuid(self, device: DeviceHandle) -> str:
        return str(self._call("nvmlDeviceGetUUID", device))

    def name(self, device: DeviceHandle) -> str:
        return str(self._call("nvmlDeviceGetName", device))

    def index(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetIndex", device))

    def minor_number(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetMinorNumber", device))

    def serial(self, device: DeviceHandle) -> str:
        return str(self._call("nvmlDeviceGetSerial", device))

    def module_id(self, device: DeviceHandle) -> int:
        # pynvml's default for the second argument is one c_uint shared by all threads.
        return int(self._call("nvmlDeviceGetModuleId", device, ctypes.c_uint()))

    def brand(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetBrand", device))

    def architecture(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetArchitecture", device))

    def cuda_compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        major, minor = self._call("nvmlDeviceGetCudaComputeCapability", device)
        return int(major), int(minor)

    def pci_info(self, device: DeviceHandle) -> PciInfo:
        info = self._call("nvmlDeviceGetPciInfo", device)
        return PciInfo(str(info.busId), int(info.pciDeviceId), int(info.pciSubSystemId))

    # --- memory, modes, fabric ---
    def memory_info(self, device: DeviceHandle) -> Memory:
        info = self._call("nvmlDeviceGetMemoryInfo", device)
        return Memory(int(info.total), int(info.free), int(info.used))

    def numa_node_id(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetNumaNodeId", device))

    def addressing_mode(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetAddressingMode", device))

    def ecc_mode(self, device: DeviceHandle) -> Modes:
        current, pending = self._call("nvmlDeviceGetEccMode", device)
        return Modes(int(current), int(pending))

    def compute_mode(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetComputeMode", device))

    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None:
        self._call("nvmlDeviceSetComputeMode", device, mode)

    def persistence_mode(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetPersistenceMode", device))

    def virtualization_mode(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetVirtualizationMode", device))

    def fabric_info(self, device: DeviceHandle) -> FabricInfo:
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        try:
            self._call("nvmlDeviceGetGpuFabricInfoV", device, ctypes.byref(info))
        except NvmlError as error:
            if error.code != NvmlCode.FUNCTION_NOT_FOUND:
                raise
        else:
            return _fabric_info(info, int(info.healthMask))
        first = pynvml.c_nvmlGpuFabricInfo_t()
        self._call("nvmlDeviceGetGpuFabricInfo", device, ctypes.byref(first))
        return _fabric_info(first, health_mask=0)

    def nvlink_state(self, device: DeviceHandle, link: int) -> int:
        return int(self._call("nvmlDeviceGetNvLinkState", device, link))

    def nvlink_remote_bus_id(self, device: DeviceHandle, link: int) -> str:
        return str(self._call("nvmlDeviceGetNvLinkRemotePciInfo", device, link).busId)

    def recovery_action(self, device: DeviceHandle) -> int:
        name = "nvmlDeviceGetFieldValues"
        (field,) = self._call(name, device, [_FIELD_RECOVERY_ACTION])
        if field.nvmlReturn != NvmlCode.SUCCESS:
            raise NvmlError(int(field.nvmlReturn), name)
        if field.valueType == _VALUE_TYPE_DOUBLE:
            # An entry that an older library left alone is all zeros, which reads as success and "no action".
            raise NvmlError(NvmlCode.NOT_SUPPORTED, name)
        return int(field.value.uiVal)

    def processes(self, device: DeviceHandle) -> tuple[Process, ...]:
        merged: dict[tuple[int, int, int], Process] = {}
        refusals = []
        for name in _PROCESS_LISTS:
            try:
                entries = self._process_list(name, device)
            except NvmlError as error:
                if not error.unsupported:
                    raise
                refusals.append(error)
                continue
            for process in entries:
                key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
                known = merged.get(key)
                # The lists name a process that computes and draws twice, each time with all of its memory.
                if known is None or known.used_memory is None:
                    merged[key] = process
        if len(refusals) == len(_PROCESS_LISTS):
            raise refusals[0]
        return tuple(merged[key] for key in sorted(merged))

    def _process_list(self, name: str, device: DeviceHandle) -> list[Process]:
        for _ in range(_PROCESS_TRIES - 1):
            try:
                return [_process(raw) for raw in self._call(name, device)]
            except NvmlError as error:
                if error.code != NvmlCode.INSUFFICIENT_SIZE:
                    raise
        return [_process(raw) for raw in self._call(name, device)]

    # --- events ---
    def supported_event_types(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetSupportedEventTypes", device))

    def create_event_set(self) -> EventSet:
        return RealEventSet(self)


def _fabric_info(info: Any, health_mask: int) -> FabricInfo:
    cluster = str(uuid.UUID(bytes=bytes(info.clusterUuid)))
    return FabricInfo(cluster, int(info.cliqueId), int(info.state), int(info.status), health_mask)


def _process(raw: Any) -> Process:
    memory = None if raw.usedGpuMemory is None else int(raw.usedGpuMemory)
    return Process(int(raw.pid), memory, int(raw.gpuInstanceId), int(raw.computeInstanceId))
