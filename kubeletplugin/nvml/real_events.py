"""Events of the real NVML."""

import ctypes
from typing import Any, Protocol

from kubeletplugin.nvml.api import DeviceHandle, Event
from kubeletplugin.nvml.binding import Handle


class Caller(Protocol):
    """What an event set needs of its session."""

    def _call(self, name: str, *arguments: object) -> Any: ...

    def _call_for_handle(self, name: str, *arguments: object) -> Handle: ...


class RealEventSet:
    """nvmlEventSet_t. Free it only when no ``wait`` is under way: NVML doesn't guard against that."""

    def __init__(self, session: Caller) -> None:
        self._session = session
        self._set = session._call_for_handle("nvmlEventSetCreate")
        # An event of a lost GPU carries a handle that may no longer answer with its UUID, so it is asked for before.
        self._uuids: dict[int | None, str] = {}

    def register(self, device: DeviceHandle, mask: int) -> None:
        uuid = str(self._session._call("nvmlDeviceGetUUID", device))
        self._session._call("nvmlDeviceRegisterEvents", device, mask, self._set)
        if isinstance(device, Handle):
            self._uuids[_address(device.pointer)] = uuid

    def wait(self, timeout_ms: int) -> Event:
        data = self._session._call("nvmlEventSetWait", self._set, timeout_ms)
        uuid = self._uuids.get(_address(data.device))
        if uuid is None:
            uuid = str(self._session._call("nvmlDeviceGetUUID", Handle(data.device, self._set.session)))
        return Event(
            uuid=uuid,
            type=int(data.eventType),
            data=int(data.eventData),
            gpu_instance_id=int(data.gpuInstanceId),
            compute_instance_id=int(data.computeInstanceId),
        )

    def free(self) -> None:
        self._session._call("nvmlEventSetFree", self._set)


def _address(pointer: Any) -> int | None:
    return ctypes.cast(pointer, ctypes.c_void_p).value
