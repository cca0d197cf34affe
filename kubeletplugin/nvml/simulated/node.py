"""Change a simulated node from outside: break it, fill it, take GPUs away, reboot it.

For tests and for people: every method writes the state file, so it reaches a running agent within the time that the
agent takes to look. GPUs are named by slot, UUID or PCI address.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.api import EVENT_XID, NO_INSTANCE
from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.simulated import mig, tree
from kubeletplugin.nvml.simulated.calls import method_of
from kubeletplugin.nvml.simulated.layout import MigLayout, apply_layout, parse_mig_flag
from kubeletplugin.nvml.simulated.nvml import SimulatedNvml
from kubeletplugin.nvml.simulated.profile import load_profile
from kubeletplugin.nvml.simulated.schema import MachineProfile
from kubeletplugin.nvml.simulated.state import (
    EVERY_GPU,
    EventState,
    FabricState,
    FaultState,
    GpuState,
    Majors,
    NodeState,
    ProcessState,
)
from kubeletplugin.nvml.simulated.store import StateStore

log = logging.getLogger(__name__)

Selector = int | str


class SimulatedNode:
    """The node whose state is in the file at ``path``. Raises StateFileError when it can't be read.

    ``profile`` is the machine's; ``store`` the file itself, for what has no method here.
    """

    def __init__(self, path: Path) -> None:
        self.store = StateStore(path, self._after_change)
        self.profile: MachineProfile = load_profile(self.store.read().machine)

    def nvml(self) -> SimulatedNvml:
        """A further NVML of this node, as another process would open it."""
        return SimulatedNvml(self.store, self.profile)

    def state(self) -> NodeState:
        """The state as it is now; not to be changed."""
        return self.store.read()

    # --- faults ---
    def inject_fault(
        self, gpu: Selector, call: str, code: int | NvmlCode | None = None, *, times: int | None = None
    ) -> None:
        """Let ``call`` (``"*"`` for every one) of ``gpu`` (``"*"``, ``"system"``) fail ``times`` times or for ever."""
        self._add_fault(FaultState(gpu=gpu, call=call, code=int(code or NvmlCode.UNKNOWN), times=times))

    def hang(self, gpu: Selector, call: str = "*", *, seconds: float | None = None, times: int | None = None) -> None:
        """Let calls hang for ``seconds``, or until ``clear_faults``."""
        self._add_fault(FaultState(gpu=gpu, call=call, hang=True if seconds is None else seconds, times=times))

    def clear_faults(self, gpu: Selector | None = None, call: str | None = None) -> None:
        """Remove the faults written with these very words; all of them without."""

        def change(state: NodeState) -> None:
            state.faults = [
                fault
                for fault in state.faults
                if (gpu is not None and fault.gpu != gpu)
                or (call is not None and method_of(fault.call) != method_of(call))
            ]

        self.store.update(change)

    # --- events ---
    def push_xid(
        self,
        gpu: Selector,
        xid: int,
        *,
        gpu_instance: int = NO_INSTANCE,
        compute_instance: int = NO_INSTANCE,
    ) -> None:
        self.push_event(gpu, EVENT_XID, xid, gpu_instance=gpu_instance, compute_instance=compute_instance)

    def push_event(
        self,
        gpu: Selector,
        type: int,
        data: int = 0,
        *,
        gpu_instance: int = NO_INSTANCE,
        compute_instance: int = NO_INSTANCE,
    ) -> None:
        def change(state: NodeState) -> None:
            slot = self._gpu(state, gpu).slot
            state.events.append(
                EventState(gpu=slot, type=type, data=data, gpu_instance=gpu_instance, compute_instance=compute_instance)
            )

        self.store.update(change)

    # --- devices ---
    def lose_gpu(self, gpu: Selector) -> None:
        """It falls off the bus: still enumerated, every call answers GPU_IS_LOST, until a reset or a reboot."""
        self._change_gpu(gpu, lambda found: setattr(found, "lost", True))

    def remove_gpu(self, gpu: Selector) -> None:
        """It is no longer enumerated; indices behind it move up."""
        self._change_gpu(gpu, lambda found: setattr(found, "present", False))

    def restore_gpu(self, gpu: Selector) -> None:
        """Undo ``lose_gpu`` and ``remove_gpu``."""

        def change(found: GpuState) -> None:
            found.present, found.lost = True, False

        self._change_gpu(gpu, change)

    def replace_gpu(self, gpu: Selector, new_uuid: str, serial: str | None = None) -> None:
        """Another board of the same model in the same slot: bare, MIG off."""

        def change(found: GpuState) -> None:
            found.uuid, found.serial = new_uuid, serial
            found.present, found.lost = True, False
            found.mig_enabled = found.mig_pending = False
            found.gpu_instances, found.processes = [], []

        self._change_gpu(gpu, change)

    def reset_gpu(self, gpu: Selector) -> None:
        """What ``nvidia-smi --gpu-reset`` does on an idle GPU: pending MIG mode in force, partitions gone, found
        again if it was lost."""
        self._change_gpu(gpu, _reset)

    def set_order(self, slots: Sequence[int]) -> None:
        """NVML's index order from now on."""
        self.store.update(lambda state: setattr(state, "order", list(slots)))

    def set_minor(self, gpu: Selector, minor: int, *, at_mode_change: bool = False) -> None:
        name = "minor_after_mode_change" if at_mode_change else "minor"
        self._change_gpu(gpu, lambda found: setattr(found, name, minor))

    def set_processes(self, gpu: Selector, processes: Iterable[ProcessState | int]) -> None:
        """The GPU's process table; a bare number is a pid that uses the whole GPU."""
        table = [ProcessState(pid=entry) if isinstance(entry, int) else entry for entry in processes]
        self._change_gpu(gpu, lambda found: setattr(found, "processes", table))

    def set_fabric(self, gpu: Selector, fabric: FabricState | None) -> None:
        """Stand for the profile's fabric info; None gives the profile's back."""
        self._change_gpu(gpu, lambda found: setattr(found, "fabric", fabric))

    def set_recovery_action(self, gpu: Selector, action: int | None) -> None:
        self._change_gpu(gpu, lambda found: setattr(found, "recovery_action", action))

    def set_mig_layout(self, layout: MigLayout | str) -> None:
        """Give the named GPUs these partitions and no others; their processes end. Raises LayoutError."""
        parsed = parse_mig_flag(layout) if isinstance(layout, str) else layout
        self.store.update(lambda state: apply_layout(state, self.profile, parsed))

    # --- the whole node ---
    def set_driver(self, *, loaded: bool | None = None, version: str | None = None) -> None:
        """Unload the driver, load it, or exchange it under running programs."""

        def change(state: NodeState) -> None:
            if loaded is not None:
                state.driver.loaded = loaded
            if version is not None:
                state.driver.version = version

        self.store.update(change)

    def set_majors(self, majors: Majors) -> None:
        """Other numbers in /proc/devices, as a driver may get at a boot or a reload."""
        self.store.update(lambda state: setattr(state, "majors", majors))

    def reboot(self) -> None:
        """A new boot id; processes, partitions, pending events and hangs are gone, lost GPUs are found again.

        MIG mode lasts over a reboot only on parts that keep it in the InfoROM (Ampere); from Hopper on it is off.
        Compute mode, persistence and recovery action are as the driver sets them. What someone broke on purpose
        stays broken: injected codes and removed GPUs are kept, and so are minors and order.
        """

        def change(state: NodeState) -> None:
            state.boots += 1
            state.boot_id = str(uuid.uuid4())
            state.events = []
            state.faults = [fault for fault in state.faults if fault.hang is False]
            for found in state.gpus:
                modes = self.profile.model_of(found.slot).modes
                if not self.profile.model_of(found.slot).mig.mode_toggle_needs_gpu_reset:
                    found.mig_pending = False
                _reset(found)
                found.compute_mode = modes.compute.nvml or 0
                found.persistence = modes.persistence == "Enabled"

        self.store.update(change)

    def materialise(self, root: Path, nodes: tree.Nodes = "placeholder") -> None:
        """Write a host tree below ``root`` that follows this node's state from now on; see ``tree``."""

        def change(state: NodeState) -> None:
            state.tree = tree.write(self.profile, root, state, nodes)

        self.store.update(change)

    def _after_change(self, state: NodeState) -> None:
        try:
            tree.sync(self.profile, state)
        except OSError as e:
            # The change itself is done; an agent that made it must not fail for a folder that someone removed.
            log.warning("write the host tree of the simulated node: %s", e)

    def _add_fault(self, fault: FaultState) -> None:
        def change(state: NodeState) -> None:
            if fault.gpu not in (EVERY_GPU, "system"):
                self._gpu(state, fault.gpu)
            state.faults.append(fault)

        self.store.update(change)

    def _change_gpu(self, gpu: Selector, change: Callable[[GpuState], None]) -> None:
        self.store.update(lambda state: change(self._gpu(state, gpu)))

    def _gpu(self, state: NodeState, gpu: Selector) -> GpuState:
        found = state.find(gpu)
        if found is None:
            raise FatalError(
                f"find GPU {gpu} of simulated {state.machine}: give a slot from 0 to {len(state.gpus) - 1}, "
                "a UUID or a PCI address"
            )
        return found


def _reset(gpu: GpuState) -> None:
    gpu.lost = False
    gpu.recovery_action = None
    gpu.processes = []
    gpu.gpu_instances = []
    mig.activate_pending_mode(gpu)
