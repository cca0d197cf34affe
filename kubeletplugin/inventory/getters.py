"""Telling apart what a failing NVML call means.

Any call may answer "not supported": that value is absent, the GPU is fine. A call that fails otherwise costs that one
value and is remarked on, unless the code says that the GPU or the whole session is gone.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from kubeletplugin.nvml.errors import NvmlCode, NvmlError

P = ParamSpec("P")
T = TypeVar("T")

SESSION_LOST = frozenset(
    {
        NvmlCode.UNINITIALIZED,
        NvmlCode.DRIVER_NOT_LOADED,
        NvmlCode.LIB_RM_VERSION_MISMATCH,
        NvmlCode.LIBRARY_NOT_FOUND,
    }
)
"""Codes that speak of the driver or the session, never of one value: only beginning NVML anew can help."""

_NOT_OF_ONE_VALUE = SESSION_LOST | {NvmlCode.GPU_IS_LOST, NvmlCode.GPU_NOT_FOUND}

NO_SUCH_ENUM = frozenset({NvmlCode.NOT_SUPPORTED, NvmlCode.INVALID_ARGUMENT, NvmlCode.FUNCTION_NOT_FOUND})
"""How drivers answer when asked for an enum member that they, or this part, don't know."""


def optional(what: str, remarks: list[str], call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The value, or None where there is none or it can't be read now (then with a remark)."""
    try:
        return call(*args, **kwargs)
    except NvmlError as error:
        tolerate(what, error, remarks)
        return None


def unless_unsupported(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The value, or None where this machine has no such value. Any other failure is the caller's."""
    try:
        return call(*args, **kwargs)
    except NvmlError as error:
        if error.unsupported:
            return None
        raise


def tolerate(what: str, error: NvmlError, remarks: list[str]) -> None:
    """Takes note of a value that can't be had. Raises ``error`` again when it concerns more than that value."""
    if error.code in _NOT_OF_ONE_VALUE:
        raise error
    if not error.unsupported:
        remarks.append(f"{what} left out ({error})")


def probe_enum(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The answer for one member of an enum, or None when there is no such member here."""
    try:
        return call(*args, **kwargs)
    except NvmlError as error:
        if error.code in NO_SUCH_ENUM:
            return None
        raise
