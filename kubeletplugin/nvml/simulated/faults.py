"""Injected faults: which one a call meets, and what it does to the call."""

import time

from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated.calls import ANY_CALL, method_of
from kubeletplugin.nvml.simulated.state import EVERY_GPU, SYSTEM, FaultState, GpuState, NodeState
from kubeletplugin.nvml.simulated.store import StateStore

POLL_SECONDS = 0.02
"""How often a hung call looks whether its fault is still in the file."""


def meet(store: StateStore, method: str, gpu: GpuState | None, call: str) -> None:
    """Fail or hang as the first matching fault says; return when there is none. ``gpu`` None is a system call."""
    fault = _match(store.read(), method, gpu)
    if fault is not None and fault.times is not None:
        fault = store.update(lambda state: _take(state, method, gpu))
    if fault is None:
        return
    if fault.hang is not False:
        _hang(store, fault)
        if fault.code is None:
            return
    raise NvmlError(NvmlCode.UNKNOWN if fault.code is None else fault.code, call)


def _match(state: NodeState, method: str, gpu: GpuState | None) -> FaultState | None:
    return next((fault for fault in state.faults if fault.times != 0 and matches(fault, method, gpu)), None)


def matches(fault: FaultState, method: str, gpu: GpuState | None) -> bool:
    called = method_of(fault.call)
    if called not in (ANY_CALL, method):
        return False
    if gpu is None:
        return fault.gpu == SYSTEM
    return fault.gpu == EVERY_GPU or (fault.gpu != SYSTEM and gpu.is_called(fault.gpu))


def _take(state: NodeState, method: str, gpu: GpuState | None) -> FaultState | None:
    """One of the ``times`` of the fault. A spent hang stays in the file: its removal is what ends the hung call."""
    fault = _match(state, method, gpu)
    if fault is None or fault.times is None:
        return fault
    fault.times -= 1
    if fault.times == 0 and fault.hang is False:
        state.faults.remove(fault)
    return fault


def _hang(store: StateStore, fault: FaultState) -> None:
    deadline = None if fault.hang is True else time.monotonic() + fault.hang
    while any(entry.identity == fault.identity for entry in store.read().faults):
        if deadline is not None and time.monotonic() >= deadline:
            return
        time.sleep(POLL_SECONDS)
