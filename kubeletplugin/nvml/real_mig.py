"""The MIG calls of the real NVML: GPU instances, compute instances and the devices that they make."""

import ctypes
from typing import Any

import pynvml

from kubeletplugin.nvml.api import (
    ComputeInstance,
    ComputeInstanceHandle,
    ComputeInstanceProfile,
    DeviceHandle,
    GpuInstance,
    GpuInstanceHandle,
    GpuInstanceProfile,
    Modes,
    Placement,
)
from kubeletplugin.nvml.binding import Handle, Session
from kubeletplugin.nvml.errors import NvmlCode, NvmlError

_MAX_INSTANCES = 64
"""Room in the arrays that NVML fills without being told their size: no GPU has so many slices."""


class MigCalls(Session):
    """The part of Nvml that concerns MIG."""

    def mig_mode(self, device: DeviceHandle) -> Modes:
        current, pending = self._call("nvmlDeviceGetMigMode", device)
        return Modes(int(current), int(pending))

    def set_mig_mode(self, device: DeviceHandle, mode: int) -> int:
        return int(self._call("nvmlDeviceSetMigMode", device, mode))

    def max_mig_device_count(self, device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetMaxMigDeviceCount", device))

    def mig_device_by_index(self, device: DeviceHandle, index: int) -> DeviceHandle:
        return DeviceHandle(self._call_for_handle("nvmlDeviceGetMigDeviceHandleByIndex", device, index))

    def gpu_instance_id(self, mig_device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetGpuInstanceId", mig_device))

    def compute_instance_id(self, mig_device: DeviceHandle) -> int:
        return int(self._call("nvmlDeviceGetComputeInstanceId", mig_device))

    def gpu_instance_profile(self, device: DeviceHandle, profile_enum: int) -> GpuInstanceProfile:
        info = self._call("nvmlDeviceGetGpuInstanceProfileInfo", device, profile_enum)
        return GpuInstanceProfile(
            id=int(info.id),
            name=str(info.name),
            slice_count=int(info.sliceCount),
            instance_count=int(info.instanceCount),
            memory_mib=int(info.memorySizeMB),
            multiprocessors=int(info.multiprocessorCount),
            copy_engines=int(info.copyEngineCount),
            decoders=int(info.decoderCount),
            encoders=int(info.encoderCount),
            jpeg_engines=int(info.jpegCount),
            ofa_engines=int(info.ofaCount),
        )

    def gpu_instance_possible_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        name = "nvmlDeviceGetGpuInstancePossiblePlacements"
        count = ctypes.c_uint(0)
        self._call(name, device, profile_id, None, ctypes.byref(count))
        placements = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        self._call(name, device, profile_id, ctypes.byref(placements), ctypes.byref(count))
        return tuple(_placement(placement) for placement in placements[: count.value])

    def gpu_instance_remaining_capacity(self, device: DeviceHandle, profile_id: int) -> int:
        return int(self._call("nvmlDeviceGetGpuInstanceRemainingCapacity", device, profile_id))

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstance, ...]:
        found = self._instances("nvmlDeviceGetGpuInstances", pynvml.c_nvmlGpuInstance_t, device, profile_id)
        return tuple(self._gpu_instance(handle) for handle in found)

    def create_gpu_instance(
        self, device: DeviceHandle, profile_id: int, placement: Placement | None = None
    ) -> GpuInstance:
        if placement is None:
            return self._gpu_instance(self._call_for_handle("nvmlDeviceCreateGpuInstance", device, profile_id))
        where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
        name = "nvmlDeviceCreateGpuInstanceWithPlacement"
        return self._gpu_instance(self._call_for_handle(name, device, profile_id, ctypes.byref(where)))

    def destroy_gpu_instance(self, gpu_instance: GpuInstanceHandle) -> None:
        self._call("nvmlGpuInstanceDestroy", gpu_instance)

    def compute_instance_profile(self, gpu_instance: GpuInstanceHandle, profile_enum: int) -> ComputeInstanceProfile:
        shared = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        info = self._call("nvmlGpuInstanceGetComputeInstanceProfileInfo", gpu_instance, profile_enum, shared)
        return ComputeInstanceProfile(
            id=int(info.id),
            name=str(info.name),
            slice_count=int(info.sliceCount),
            instance_count=int(info.instanceCount),
            multiprocessors=int(info.multiprocessorCount),
        )

    def compute_instances(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstance, ...]:
        name = "nvmlGpuInstanceGetComputeInstances"
        found = self._instances(name, pynvml.c_nvmlComputeInstance_t, gpu_instance, profile_id)
        return tuple(self._compute_instance(handle) for handle in found)

    def create_compute_instance(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> ComputeInstance:
        name = "nvmlGpuInstanceCreateComputeInstance"
        return self._compute_instance(self._call_for_handle(name, gpu_instance, profile_id))

    def destroy_compute_instance(self, compute_instance: ComputeInstanceHandle) -> None:
        self._call("nvmlComputeInstanceDestroy", compute_instance)

    def _instances(self, name: str, pointer_type: Any, owner: object, profile_id: int) -> list[Handle]:
        token = self._token
        pointers = (pointer_type * _MAX_INSTANCES)()
        count = ctypes.c_uint(_MAX_INSTANCES)
        self._call(name, owner, profile_id, ctypes.byref(pointers), ctypes.byref(count))
        return [Handle(pointers[i], token) for i in range(count.value)]

    def _gpu_instance(self, handle: Handle) -> GpuInstance:
        info = self._call("nvmlGpuInstanceGetInfo", handle)
        return GpuInstance(GpuInstanceHandle(handle), int(info.id), int(info.profileId), _placement(info.placement))

    def _compute_instance(self, handle: Handle) -> ComputeInstance:
        info = self._call("nvmlComputeInstanceGetInfo", handle)
        return ComputeInstance(
            ComputeInstanceHandle(handle),
            int(info.id),
            int(info.profileId),
            _placement(info.placement),
            self._mig_uuid(info, handle.session),
        )

    def _mig_uuid(self, info: Any, session: object) -> str:
        """The UUID of the MIG device that the compute instance ``info`` makes.

        Drivers give the MIG device as ``info.device``, although nvml.h calls the field the parent device; should one
        keep to its header, the MIG device is looked up among the parent's.
        """
        device = DeviceHandle(Handle(info.device, session))
        uuid = str(self._call("nvmlDeviceGetUUID", device))
        if uuid.startswith("MIG-"):
            return uuid
        gpu_instance_id = int(self._call("nvmlGpuInstanceGetInfo", Handle(info.gpuInstance, session)).id)
        for index in range(self.max_mig_device_count(device)):
            try:
                mig_device = self.mig_device_by_index(device, index)
            except NvmlError as error:
                if error.code == NvmlCode.NOT_FOUND:
                    continue
                raise
            ids = (self.gpu_instance_id(mig_device), self.compute_instance_id(mig_device))
            if ids == (gpu_instance_id, int(info.id)):
                return str(self._call("nvmlDeviceGetUUID", mig_device))
        raise NvmlError(NvmlCode.NOT_FOUND, "nvmlDeviceGetMigDeviceHandleByIndex")


def _placement(raw: Any) -> Placement:
    return Placement(int(raw.start), int(raw.size))
