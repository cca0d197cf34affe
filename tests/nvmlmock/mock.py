"""The mock in this process: which machine it is, and what a test does to it."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from kubeletplugin.nvml.api import NO_INSTANCE
from kubeletplugin.nvml.real import RealNvml
from kubeletplugin.nvml.simulated.schema import MachineProfile
from tests.nvmlmock.render import render

HANG = -1
FOR_EVER = -1
ANY_DEVICE = -1


class NvmlMock:
    """Control of a built mock library, whose machine is in the file ``config`` and is read at NVML's next init."""

    def __init__(self, library: Path, config: Path) -> None:
        self.library = library
        self.config = config
        self._control = ctypes.CDLL(str(library))
        self._control.nvmlmock_reset()

    def be(self, profile: MachineProfile, extra: dict[str, str] | None = None) -> None:
        # A board may hold any bytes: surrogates stand for those that aren't UTF-8.
        self.config.write_text(render(profile, extra), errors="surrogateescape")

    def fault(self, symbol: str, device: int, code: int, times: int = FOR_EVER) -> None:
        """``symbol`` as exported (``nvmlDeviceGetCount_v2``), ``*`` for all calls about ``device``."""
        self._control.nvmlmock_fault(symbol.encode(), device, code, times)

    def clear_faults(self) -> None:
        """Also ends hangs."""
        self._control.nvmlmock_clear_faults()

    def hanging(self) -> int:
        """How many calls hang now."""
        return int(self._control.nvmlmock_hanging())

    def push_event(
        self, device: int, kind: int, data: int, gpu_instance: int = NO_INSTANCE, compute_instance: int = NO_INSTANCE
    ) -> None:
        self._control.nvmlmock_push_event(
            device, ctypes.c_ulonglong(kind), ctypes.c_ulonglong(data), gpu_instance, compute_instance
        )


LibraryFor = Callable[[frozenset[str]], Path]
"""The built library that lacks these symbols."""


class MakeMock(Protocol):
    """The fixture that turns the library into a machine; ``extra`` entries go into its file."""

    def __call__(self, profile: MachineProfile, extra: dict[str, str] | None = None) -> NvmlMock: ...


OpenReal = Callable[[NvmlMock], RealNvml]
"""The fixture that opens the real implementation over the mock, initialised."""
