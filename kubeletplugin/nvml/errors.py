"""NVML's error as one type of ours that keeps the code."""

import enum


class NvmlCode(enum.IntEnum):
    """nvmlReturn_t (nvml.h, 13.3)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


UNSUPPORTED = frozenset({NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND, NvmlCode.NO_DATA})
"""The codes that mean "this machine has no such value": the attribute is left out, the device stays."""


class NvmlError(Exception):
    """An NVML call that didn't succeed.

    ``code`` is a member of NvmlCode where NVML's number is known, else the bare number; ``call`` is the C name.
    """

    def __init__(self, code: int, call: str) -> None:
        self.code: int = NvmlCode(code) if code in NvmlCode._value2member_map_ else code
        self.call = call
        name = self.code.name if isinstance(self.code, NvmlCode) else f"code {code}"
        super().__init__(f"{call}: {name}")

    @property
    def unsupported(self) -> bool:
        return self.code in UNSUPPORTED


class NvmlTimeoutError(NvmlError):
    """A call that didn't come back within its deadline, or wasn't made because it couldn't have (our own verdict, not
    NVML's). The text is for people, so it doesn't name ``call``, which may be a function of ours."""

    def __init__(self, call: str, seconds: float, why: str = "") -> None:
        super().__init__(NvmlCode.TIMEOUT, call)
        self.seconds = seconds
        self.args = (why or f"NVML gave no answer within {seconds:g} s",)
