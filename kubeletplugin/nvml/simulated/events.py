"""Event sets: every set sees each event of its devices that was written after it registered them.

Events come from the state file, so another process can send them; a waiting set looks for a changed file in short
steps. A lost device makes ``wait`` answer GPU_IS_LOST, after the events that were there before.
"""

import threading
import time

from kubeletplugin.nvml.api import EVENT_XID, DeviceHandle, Event
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated.calls import c_name
from kubeletplugin.nvml.simulated.session import Session
from kubeletplugin.nvml.simulated.state import EventState, NodeState

POLL_SECONDS = 0.02


class SimulatedEventSet:
    """nvmlEventSet_t over a session. ``free`` from another thread ends a wait."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._registered: dict[int, tuple[int, int]] = {}
        self._delivered = 0
        self._freed = threading.Event()

    def register(self, device: DeviceHandle, mask: int) -> None:
        found = self._session.device("register", device)
        if mask & ~found.model.events.supported_mask:
            raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name("register"))
        known, since = self._registered.get(found.handle.slot, (0, self._numbered().next_event))
        self._registered[found.handle.slot] = (known | mask, since)

    def wait(self, timeout_ms: int) -> Event:
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._session.system("wait")
            node = self._numbered()
            if event := self._next(node):
                return event
            if any(node.gpus[slot].lost for slot in self._registered):
                raise NvmlError(NvmlCode.GPU_IS_LOST, c_name("wait"))
            left = deadline - time.monotonic()
            if left <= 0:
                raise NvmlError(NvmlCode.TIMEOUT, c_name("wait"))
            if self._freed.wait(min(left, POLL_SECONDS)):
                raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name("wait"))

    def free(self) -> None:
        self._freed.set()

    def _numbered(self) -> NodeState:
        node = self._session.store.read()
        if any(event.seq is None for event in node.events):
            self._session.change("wait", NodeState.number_events)
            node = self._session.store.read()
        return node

    def _next(self, node: NodeState) -> Event | None:
        for event in node.events:
            gpu = node.find(event.gpu)
            if gpu is None or event.seq is None or event.seq <= self._delivered:
                continue
            mask, since = self._registered.get(gpu.slot, (0, 0))
            if event.seq >= since and event.type & mask:
                self._delivered = event.seq
                return _as_seen(event, gpu.uuid)
        return None


def _as_seen(event: EventState, uuid: str) -> Event:
    data = event.data
    if event.type == EVENT_XID and event.xid is not None:
        data = event.xid
    return Event(uuid, event.type, data, event.gpu_instance, event.compute_instance)
