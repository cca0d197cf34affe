"""The one door to nvidia-ml-py: a library loaded by path, and every failure as our NvmlError.

pynvml keeps one library and one cache of function pointers per process and always opens ``libnvidia-ml.so.1`` by bare
name. So a Session puts its own library there at ``open`` and is the only one in force until the next ``open``. A call
made for a session that is over never reaches the new library: its handles are addresses inside the old one, and a
worker that hung across a driver reload may come back with them at any time.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.library import LibraryError

_loaded: dict[tuple[int, int], ctypes.CDLL] = {}
"""Libraries by (device, inode). Never unloaded: a hung call may still be inside an old one."""

_in_force: object | None = None
"""The token of the session whose library pynvml holds."""


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """An NVML handle (a ctypes pointer) and the session it is good for."""

    pointer: Any
    session: object


class Session:
    """Calls into one loaded library. ``locate`` is asked at every open: a driver upgrade moves the file."""

    def __init__(self, locate: Callable[[], Path]) -> None:
        self._locate = locate
        self._token: object | None = None

    def _open(self) -> None:
        """Load the library and put it in force. Raises NvmlError LIBRARY_NOT_FOUND."""
        global _in_force
        library = _load(self._locate())
        self._token = object()
        with pynvml.libLoadLock:
            pynvml.nvmlLib = library
            pynvml._nvmlGetFunctionPointer_cache.clear()
            _in_force = self._token

    def _close(self) -> None:
        self._token = None

    def _call(self, name: str, *arguments: object) -> Any:
        """Run pynvml's wrapper of the C call ``name``; Handle arguments are unwrapped. Raises NvmlError."""
        if self._token is None or self._token is not _in_force:
            raise NvmlError(NvmlCode.UNINITIALIZED, name)
        plain = [self._pointer(argument, name) if isinstance(argument, Handle) else argument for argument in arguments]
        try:
            wrapper = getattr(pynvml, name)
        except AttributeError:  # an nvidia-ml-py older than the call
            raise NvmlError(NvmlCode.FUNCTION_NOT_FOUND, name) from None
        try:
            return wrapper(*plain)
        except pynvml.NVMLError as error:
            # Not chained: pynvml's errors can't be hashed and fail when compared, and say nothing but the code.
            raise NvmlError(error.value, name) from None
        except pynvml.NVMLLibraryMismatchError:
            raise NvmlError(NvmlCode.FUNCTION_NOT_FOUND, name) from None
        except UnicodeDecodeError as error:  # a board with garbage in its InfoROM
            raise NvmlError(NvmlCode.UNKNOWN, name) from error

    def _call_for_handle(self, name: str, *arguments: object) -> Handle:
        """As ``_call``, for one that returns a pointer, which belongs to the session in which the call began."""
        token = self._token
        return Handle(self._call(name, *arguments), token)

    def _pointer(self, handle: Handle, call: str) -> Any:
        if handle.session is not self._token:
            raise NvmlError(NvmlCode.UNINITIALIZED, call)
        return handle.pointer


def _load(path: Path) -> ctypes.CDLL:
    try:
        status = path.stat()
    except OSError as error:
        raise LibraryError(f"load {path}: {error.strerror}") from error
    identity = (status.st_dev, status.st_ino)
    library = _loaded.get(identity)
    if library is None:
        # The dynamic loader would answer a name that it knows with the file that had the name then, so each file
        # gets a name of its own.
        name = os.fspath(path.parent) + "/." * len(_loaded) + "/" + path.name
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            raise LibraryError(f"load {path}: {error}") from error
        _loaded[identity] = library
    return library
