"""The Nvml Protocol over a simulated node: identity, memory, modes, fabric. MIG calls are in ``nvml_mig.py``."""

from typing import TypeVar

from kubeletplugin.nvml.api import (
    NO_INSTANCE,
    DeviceHandle,
    EventSet,
    FabricInfo,
    Memory,
    Modes,
    PciInfo,
    Process,
)
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import facts
from kubeletplugin.nvml.simulated.calls import c_name
from kubeletplugin.nvml.simulated.events import SimulatedEventSet
from kubeletplugin.nvml.simulated.nvml_mig import MigCalls
from kubeletplugin.nvml.simulated.session import RECOVERY_ACTION_FIELD, Device
from kubeletplugin.nvml.simulated.state import NodeState

T = TypeVar("T")

MIB = 1 << 20


class SimulatedNvml(MigCalls):
    """An Nvml (see ``nvml.api``) whose answers come from a machine profile and a state file."""

    def init(self) -> None:
        self._session.init()

    def shutdown(self) -> None:
        self._session.shutdown()

    def driver_version(self) -> str:
        return self._session.system("driver_version").driver.version

    def nvml_version(self) -> str:
        node = self._session.system("nvml_version")
        return facts.nvml_version(self._profile, node.driver.version)

    def cuda_driver_version(self) -> int:
        self._session.system("cuda_driver_version")
        return self._profile.driver.cuda_driver_version

    def device_count(self) -> int:
        return len(self._session.system("device_count").enumerated())

    def device_by_index(self, index: int) -> DeviceHandle:
        enumerated = self._session.system("device_by_index").enumerated()
        if index not in range(len(enumerated)):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name("device_by_index"))
        gpu = enumerated[index]
        self._session.meet_faults("device_by_index", gpu)
        return self._session.handle(gpu)

    def device_by_uuid(self, uuid: str) -> DeviceHandle:
        for gpu in self._session.system("device_by_uuid").enumerated():
            if gpu.uuid == uuid:
                self._session.meet_faults("device_by_uuid", gpu)
                return self._session.handle(gpu)
            for parent, child in gpu.compute_instances():
                if child.uuid == uuid:
                    self._session.meet_faults("device_by_uuid", gpu)
                    return self._session.mig_handle(gpu, parent, child)
        raise NvmlError(NvmlCode.NOT_FOUND, c_name("device_by_uuid"))

    def uuid(self, device: DeviceHandle) -> str:
        found = self._session.device("uuid", device)
        return found.partition[1].uuid if found.partition else found.gpu.uuid

    def name(self, device: DeviceHandle) -> str:
        found = self._session.device("name", device)
        if found.partition is None:
            return found.model.name
        entry = found.model.mig.entry(found.partition[0].profile_id)
        profile = entry.profile.name if entry is not None else ""
        compute = "" if self._whole(found) else f"{found.partition[1].size}c."
        return f"{found.model.name} MIG {compute}{profile}"

    def index(self, device: DeviceHandle) -> int:
        found = self._session.device("index", device)
        if found.partition is not None:
            return found.partition[1].mig_index
        return [gpu.slot for gpu in found.node.enumerated()].index(found.gpu.slot)

    def minor_number(self, device: DeviceHandle) -> int:
        return self._session.device("minor_number", device).gpu.minor

    def serial(self, device: DeviceHandle) -> str:
        return _known("serial", self._session.device("serial", device).gpu.serial)

    def module_id(self, device: DeviceHandle) -> int:
        return facts.module_id(self._profile, self._session.device("module_id", device).handle.slot)

    def brand(self, device: DeviceHandle) -> int:
        return _known("brand", self._session.device("brand", device).model.brand.nvml)

    def architecture(self, device: DeviceHandle) -> int:
        return _known("architecture", self._session.device("architecture", device).model.architecture.nvml)

    def cuda_compute_capability(self, device: DeviceHandle) -> tuple[int, int]:
        return self._session.device("cuda_compute_capability", device).model.cuda_compute_capability

    def pci_info(self, device: DeviceHandle) -> PciInfo:
        found = self._session.device("pci_info", device)
        pci = found.model.pci
        return PciInfo(found.gpu.pci_bus_id, pci.device_id, pci.subsystem_id or 0)

    def memory_info(self, device: DeviceHandle) -> Memory:
        """``used`` counts what the driver reserves, as version 1 of the call does on current drivers."""
        found = self._session.device("memory_info", device)
        memory = found.model.memory
        total = _known("memory_info", memory.total_bytes)
        used = (memory.used_mib + (memory.reserved_mib or 0)) * MIB
        if found.partition is not None:
            entry = found.model.mig.entry(found.partition[0].profile_id)
            total, used = (entry.profile.memory_mib if entry is not None else 0) * MIB, 0
        used = min(total, used + sum(process.used_memory or 0 for process in _processes(found)))
        return Memory(total, total - used, used)

    def numa_node_id(self, device: DeviceHandle) -> int:
        return _known("numa_node_id", self._session.device("numa_node_id", device).spec.nvml_numa_node_id)

    def addressing_mode(self, device: DeviceHandle) -> int:
        addressing = self._session.device("addressing_mode", device).model.modes.addressing
        return _known("addressing_mode", addressing.nvml if addressing is not None else None)

    def ecc_mode(self, device: DeviceHandle) -> Modes:
        ecc = self._session.device("ecc_mode", device).model.ecc
        return Modes(int(_known("ecc_mode", ecc.current)), int(_known("ecc_mode", ecc.pending)))

    def compute_mode(self, device: DeviceHandle) -> int:
        found = self._session.device("compute_mode", device)
        return found.partition[1].compute_mode if found.partition else found.gpu.compute_mode

    def set_compute_mode(self, device: DeviceHandle, mode: int) -> None:
        """While MIG is on the mode is a partition's: the GPU's own handle answers NOT_SUPPORTED."""
        found = self._session.device("set_compute_mode", device)
        if mode not in range(4):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name("set_compute_mode"))
        if found.gpu.mig_enabled and found.partition is None:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name("set_compute_mode"))

        def change(node: NodeState) -> None:
            gpu = node.gpus[found.handle.slot]
            for parent, child in gpu.compute_instances():
                if (parent.id, child.id) == (found.handle.gpu_instance, found.handle.compute_instance):
                    child.compute_mode = mode
                    return
            if found.partition is not None:
                raise NvmlError(NvmlCode.NOT_FOUND, c_name("set_compute_mode"))
            gpu.compute_mode = mode

        self._session.change("set_compute_mode", change)

    def persistence_mode(self, device: DeviceHandle) -> int:
        return int(self._session.device("persistence_mode", device).gpu.persistence)

    def virtualization_mode(self, device: DeviceHandle) -> int:
        model = self._session.device("virtualization_mode", device).model
        return _known("virtualization_mode", model.modes.virtualization.nvml)

    def fabric_info(self, device: DeviceHandle) -> FabricInfo:
        found = self._session.device("fabric_info", device)
        own = found.gpu.fabric
        if own is not None:
            return FabricInfo(own.cluster_uuid, own.clique_id, own.state, own.status, own.health_mask)
        fabric = self._profile.fabric
        if not fabric.supported or fabric.state is None or fabric.status is None:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name("fabric_info"))
        return FabricInfo(
            fabric.cluster_uuid, fabric.clique_id, fabric.state.nvml or 0, fabric.status.nvml or 0, fabric.health_mask
        )

    def nvlink_state(self, device: DeviceHandle, link: int) -> int:
        nvlink = self._link("nvlink_state", device, link).model.nvlink
        return int(link < nvlink.active_links)

    def nvlink_remote_bus_id(self, device: DeviceHandle, link: int) -> str:
        found = self._link("nvlink_remote_bus_id", device, link)
        return _known("nvlink_remote_bus_id", facts.link_target_bus_id(self._profile, found.handle.slot, link))

    def recovery_action(self, device: DeviceHandle) -> int:
        found = self._session.device("recovery_action", device)
        recovery = found.model.recovery_action
        if not recovery.supported or RECOVERY_ACTION_FIELD in found.model.not_supported_field_ids:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name("recovery_action"))
        return found.gpu.recovery_action if found.gpu.recovery_action is not None else recovery.nvml or 0

    def processes(self, device: DeviceHandle) -> tuple[Process, ...]:
        return _processes(self._session.device("processes", device))

    def supported_event_types(self, device: DeviceHandle) -> int:
        return self._session.device("supported_event_types", device).model.events.supported_mask

    def create_event_set(self) -> EventSet:
        self._session.system("create_event_set")
        return SimulatedEventSet(self._session)

    def _link(self, method: str, device: DeviceHandle, link: int) -> Device:
        found = self._session.device(method, device)
        if found.model.nvlink.links == 0:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))
        if link not in range(found.model.nvlink.links):
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
        return found

    def _whole(self, found: Device) -> bool:
        """Whether the partition's compute instance is all of its GPU instance."""
        assert found.partition is not None
        entry = found.model.mig.entry(found.partition[0].profile_id)
        return entry is None or found.partition[1].size == entry.profile.slices


def _known(method: str, value: T | None) -> T:
    if value is None:
        raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))
    return value


def _processes(found: Device) -> tuple[Process, ...]:
    handle = found.handle
    return tuple(
        Process(
            process.pid,
            process.used_memory,
            NO_INSTANCE if process.gpu_instance is None else process.gpu_instance,
            NO_INSTANCE if process.compute_instance is None else process.compute_instance,
        )
        for process in found.gpu.processes
        if handle.gpu_instance is None
        or (process.gpu_instance, process.compute_instance) == (handle.gpu_instance, handle.compute_instance)
    )
