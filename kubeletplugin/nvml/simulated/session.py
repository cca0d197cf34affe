"""What every simulated call does before it answers: find the device, meet its faults, refuse what the part lacks.

The order is the driver's: a call that the library doesn't have fails before anything is asked of a device, an
injected fault comes before the device's own condition, and only then does the call look at what the part supports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

from kubeletplugin.nvml.api import DeviceHandle
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import faults
from kubeletplugin.nvml.simulated.calls import C_NAMES, ON_MIG_DEVICES, c_name
from kubeletplugin.nvml.simulated.schema import Gpu, GpuModel, MachineProfile
from kubeletplugin.nvml.simulated.state import ComputeInstanceState, GpuInstanceState, GpuState, NodeState
from kubeletplugin.nvml.simulated.store import StateFileError, StateStore

T = TypeVar("T")

RECOVERY_ACTION_FIELD = 230


@dataclass(frozen=True, slots=True)
class Handle:
    """A device of one session: the board that was in ``slot``, or a partition of it.

    ``session`` counts the times that NVML was initialised anew: no handle survives that.
    """

    session: int
    slot: int
    uuid: str
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device as one call sees it."""

    handle: Handle
    node: NodeState
    gpu: GpuState
    spec: Gpu
    model: GpuModel

    @property
    def partition(self) -> tuple[GpuInstanceState, ComputeInstanceState] | None:
        for parent, child in self.gpu.compute_instances():
            if (parent.id, child.id) == (self.handle.gpu_instance, self.handle.compute_instance):
                return parent, child
        return None


class Session:
    """One initialised NVML over a state file. ``init`` is counted, as NVML counts it."""

    def __init__(self, store: StateStore, profile: MachineProfile) -> None:
        self.store = store
        self.profile = profile
        self._users = 0
        self._number = 0
        self._driver_version = ""

    def init(self) -> None:
        self.meet_faults("init", None)
        driver = self.store.read().driver
        if not driver.loaded:
            raise NvmlError(NvmlCode.DRIVER_NOT_LOADED, c_name("init"))
        if self._users == 0:
            self._driver_version = driver.version
            self._number += 1
        self._users += 1

    def shutdown(self) -> None:
        if self._users == 0:
            raise NvmlError(NvmlCode.UNINITIALIZED, c_name("shutdown"))
        self._users -= 1

    def system(self, method: str) -> NodeState:
        """The node, for a call without a device."""
        node = self._require_open(method)
        self.meet_faults(method, None)
        return self.store.read() if node.faults else node

    def device(self, method: str, handle: DeviceHandle) -> Device:
        """The device of ``handle``. Raises NvmlError: what ``method`` answers where it can't answer."""
        node = self._require_open(method)
        found = handle if isinstance(handle, Handle) else None
        if found is None:
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
        if found.session != self._number:
            raise NvmlError(NvmlCode.UNINITIALIZED, c_name(method))
        function = self._function(method)
        gpu = node.gpus[found.slot]
        self.meet_faults(method, gpu)
        if node.faults:
            # The call may have hung for long.
            node = self.store.read()
            gpu = node.gpus[found.slot]
        if gpu.lost or not gpu.present or gpu.uuid != found.uuid:
            raise NvmlError(NvmlCode.GPU_IS_LOST, c_name(method))
        device = Device(found, node, gpu, self.profile.gpus[found.slot], self.profile.model_of(found.slot))
        if found.gpu_instance is not None:
            self._require_partition(method, device)
        if function in device.model.not_supported:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))
        return device

    def meet_faults(self, method: str, gpu: GpuState | None) -> None:
        self._guard(method, lambda: faults.meet(self.store, method, gpu, c_name(method)))

    def change(self, method: str, change: Callable[[NodeState], T]) -> T:
        """Change the node's state on behalf of an NVML call."""
        return self._guard(method, lambda: self.store.update(change))

    def handle(self, gpu: GpuState) -> DeviceHandle:
        return cast("DeviceHandle", Handle(self._number, gpu.slot, gpu.uuid))

    def mig_handle(self, gpu: GpuState, parent: GpuInstanceState, child: ComputeInstanceState) -> DeviceHandle:
        return cast("DeviceHandle", Handle(self._number, gpu.slot, gpu.uuid, parent.id, child.id))

    def _guard(self, method: str, run: Callable[[], T]) -> T:
        try:
            return run()
        except StateFileError as e:
            # To the agent a state file that someone broke is a driver that fails, not a reason to end.
            raise NvmlError(NvmlCode.UNKNOWN, c_name(method)) from e

    def _require_open(self, method: str) -> NodeState:
        if self._users == 0:
            raise NvmlError(NvmlCode.UNINITIALIZED, c_name(method))
        node = self.store.read()
        if not node.driver.loaded:
            raise NvmlError(NvmlCode.DRIVER_NOT_LOADED, c_name(method))
        if node.driver.version != self._driver_version:
            raise NvmlError(NvmlCode.LIB_RM_VERSION_MISMATCH, c_name(method))
        return node

    def _function(self, method: str) -> str:
        """The C function that this driver has for ``method``."""
        for name in C_NAMES[method]:
            if name not in self.profile.driver.missing_symbols:
                return name
        raise NvmlError(NvmlCode.FUNCTION_NOT_FOUND, c_name(method))

    def _require_partition(self, method: str, device: Device) -> None:
        if device.partition is None:
            raise NvmlError(NvmlCode.NOT_FOUND, c_name(method))
        if method not in ON_MIG_DEVICES:
            raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
