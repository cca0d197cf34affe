"""The MIG calls of the simulated Nvml."""

from dataclasses import dataclass
from typing import cast

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
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import mig
from kubeletplugin.nvml.simulated.calls import c_name
from kubeletplugin.nvml.simulated.schema import InstanceProfileEntry, MachineProfile
from kubeletplugin.nvml.simulated.session import Device, Handle, Session
from kubeletplugin.nvml.simulated.state import ComputeInstanceState, GpuInstanceState
from kubeletplugin.nvml.simulated.store import StateStore


@dataclass(frozen=True, slots=True)
class InstanceHandle:
    """A GPU instance, or with ``child`` a compute instance in it."""

    device: Handle
    gpu_instance: int
    child: int | None = None


class MigCalls:
    def __init__(self, store: StateStore, profile: MachineProfile) -> None:
        self._profile = profile
        self._session = Session(store, profile)

    def mig_mode(self, device: DeviceHandle) -> Modes:
        found = self._session.device("mig_mode", device)
        return Modes(int(found.gpu.mig_enabled), int(found.gpu.mig_pending))

    def set_mig_mode(self, device: DeviceHandle, mode: int) -> int:
        found = self._capable("set_mig_mode", device)
        if mode not in (0, 1):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name("set_mig_mode"))
        slot = found.handle.slot
        return self._session.change(
            "set_mig_mode", lambda node: int(mig.set_mode(node.gpus[slot], found.model, bool(mode)))
        )

    def max_mig_device_count(self, device: DeviceHandle) -> int:
        """0 while MIG is off or where the part can't do it."""
        found = self._session.device("max_mig_device_count", device)
        return found.model.mig.max_mig_devices if found.gpu.mig_enabled else 0

    def mig_device_by_index(self, device: DeviceHandle, index: int) -> DeviceHandle:
        found = self._session.device("mig_device_by_index", device)
        if index not in range(found.model.mig.max_mig_devices):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name("mig_device_by_index"))
        for parent, child in found.gpu.compute_instances():
            if child.mig_index == index:
                return self._session.mig_handle(found.gpu, parent, child)
        raise NvmlError(NvmlCode.NOT_FOUND, c_name("mig_device_by_index"))

    def gpu_instance_id(self, mig_device: DeviceHandle) -> int:
        return self._partition("gpu_instance_id", mig_device)[0].id

    def compute_instance_id(self, mig_device: DeviceHandle) -> int:
        return self._partition("compute_instance_id", mig_device)[1].id

    def gpu_instance_profile(self, device: DeviceHandle, profile_enum: int) -> GpuInstanceProfile:
        found = self._session.device("gpu_instance_profile", device)
        entry = mig.entry_by_enum(found.model.mig, profile_enum, "gpu_instance_profile")
        profile = entry.profile
        return GpuInstanceProfile(
            id=profile.id,
            name=f"{found.model.mig.profile_info_name_prefix}{profile.name}",
            slice_count=profile.slices,
            instance_count=profile.max,
            memory_mib=profile.memory_mib,
            multiprocessors=profile.sm,
            copy_engines=profile.ce or 0,
            decoders=profile.dec,
            encoders=profile.enc,
            jpeg_engines=profile.jpeg,
            ofa_engines=profile.ofa,
        )

    def gpu_instance_possible_placements(self, device: DeviceHandle, profile_id: int) -> tuple[Placement, ...]:
        found = self._capable("gpu_instance_possible_placements", device)
        return mig.possible_placements(self._entry("gpu_instance_possible_placements", found, profile_id))

    def gpu_instance_remaining_capacity(self, device: DeviceHandle, profile_id: int) -> int:
        method = "gpu_instance_remaining_capacity"
        found = self._capable(method, device)
        mig.require_enabled(found.gpu, method)
        return mig.remaining_capacity(found.gpu, found.model.mig, self._entry(method, found, profile_id))

    def gpu_instances(self, device: DeviceHandle, profile_id: int) -> tuple[GpuInstance, ...]:
        found = self._capable("gpu_instances", device)
        mig.require_enabled(found.gpu, "gpu_instances")
        self._entry("gpu_instances", found, profile_id)
        return tuple(
            _gpu_instance(found.handle, instance)
            for instance in found.gpu.gpu_instances
            if instance.profile_id == profile_id
        )

    def create_gpu_instance(
        self, device: DeviceHandle, profile_id: int, placement: Placement | None = None
    ) -> GpuInstance:
        found = self._capable("create_gpu_instance", device)
        slot, spec = found.handle.slot, found.model.mig
        instance = self._session.change(
            "create_gpu_instance",
            lambda node: mig.create_gpu_instance(node.gpus[slot], spec, profile_id, placement),
        )
        return _gpu_instance(found.handle, instance)

    def destroy_gpu_instance(self, gpu_instance: GpuInstanceHandle) -> None:
        handle = self._instance("destroy_gpu_instance", gpu_instance)
        self._session.change(
            "destroy_gpu_instance",
            lambda node: mig.destroy_gpu_instance(node.gpus[handle.device.slot], handle.gpu_instance),
        )

    def compute_instance_profile(self, gpu_instance: GpuInstanceHandle, profile_enum: int) -> ComputeInstanceProfile:
        method = "compute_instance_profile"
        entry = self._parent_entry(method, self._instance(method, gpu_instance))
        profile = mig.compute_profile_by_enum(entry, profile_enum, method)
        whole = profile.slices == entry.profile.slices
        name = entry.profile.name if whole else f"{profile.slices}c.{entry.profile.name}"
        return ComputeInstanceProfile(profile.id, f"MIG {name}", profile.slices, profile.max, profile.sm)

    def compute_instances(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> tuple[ComputeInstance, ...]:
        method = "compute_instances"
        handle = self._instance(method, gpu_instance)
        mig.compute_profile(self._parent_entry(method, handle), profile_id, method)
        return tuple(
            _compute_instance(handle, child)
            for child in self._gpu_instance_state(method, handle).compute_instances
            if child.profile_id == profile_id
        )

    def create_compute_instance(self, gpu_instance: GpuInstanceHandle, profile_id: int) -> ComputeInstance:
        method = "create_compute_instance"
        handle = self._instance(method, gpu_instance)
        spec = self._profile.model_of(handle.device.slot).mig
        child = self._session.change(
            method,
            lambda node: mig.create_compute_instance(
                node.gpus[handle.device.slot], spec, handle.gpu_instance, profile_id
            ),
        )
        return _compute_instance(handle, child)

    def destroy_compute_instance(self, compute_instance: ComputeInstanceHandle) -> None:
        method = "destroy_compute_instance"
        handle = self._instance(method, compute_instance)
        if handle.child is None:
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
        child = handle.child
        self._session.change(
            method,
            lambda node: mig.destroy_compute_instance(node.gpus[handle.device.slot], handle.gpu_instance, child),
        )

    def _capable(self, method: str, device: DeviceHandle) -> Device:
        found = self._session.device(method, device)
        if not found.model.mig.capable:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))
        return found

    def _partition(self, method: str, device: DeviceHandle) -> tuple[GpuInstanceState, ComputeInstanceState]:
        partition = self._session.device(method, device).partition
        if partition is None:
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
        return partition

    def _entry(self, method: str, found: Device, profile_id: int) -> InstanceProfileEntry:
        return mig.entry_by_id(found.model.mig, profile_id, method)

    def _instance(self, method: str, handle: object) -> InstanceHandle:
        """The instance of ``handle``, after the checks that every call on its GPU makes."""
        if not isinstance(handle, InstanceHandle):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
        self._session.device(method, cast("DeviceHandle", handle.device))
        self._gpu_instance_state(method, handle)
        return handle

    def _gpu_instance_state(self, method: str, handle: InstanceHandle) -> GpuInstanceState:
        gpu = self._session.store.read().gpus[handle.device.slot]
        return mig.find_gpu_instance(gpu, handle.gpu_instance, method)

    def _parent_entry(self, method: str, handle: InstanceHandle) -> InstanceProfileEntry:
        profile_id = self._gpu_instance_state(method, handle).profile_id
        return mig.entry_by_id(self._profile.model_of(handle.device.slot).mig, profile_id, method)


def _gpu_instance(device: Handle, instance: GpuInstanceState) -> GpuInstance:
    handle = cast("GpuInstanceHandle", InstanceHandle(device, instance.id))
    return GpuInstance(handle, instance.id, instance.profile_id, Placement(instance.start, instance.size))


def _compute_instance(parent: InstanceHandle, child: ComputeInstanceState) -> ComputeInstance:
    handle = cast("ComputeInstanceHandle", InstanceHandle(parent.device, parent.gpu_instance, child.id))
    return ComputeInstance(handle, child.id, child.profile_id, Placement(child.start, child.size), child.uuid)
