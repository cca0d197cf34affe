"""Where is libnvidia-ml? A search over driver roots that explains every miss.

A driver root is a folder that holds a driver as it would lie under ``/``: the host's own root, an installer container's
(``/run/nvidia/driver``), a distribution's odd place, or any of these mounted into our container. So an absolute
symbolic link inside a root is followed inside that root, as it would be after a chroot: the same path outside belongs
to somebody else. A file counts only if this process could load it: regular, not empty, a shared ELF object of our own
class and machine. A path alone proves nothing: installers leave empty files, dangling links and libraries for another
architecture behind, and mounts appear late.
"""

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kubeletplugin.nvml.errors import NvmlCode, NvmlError

LIBRARY_NAME = "libnvidia-ml.so.1"

FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",  # also GKE's root, /home/kubernetes/bin/nvidia
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/lib/aarch64-linux-gnu/nvidia",  # Jetson
    "usr/lib/wsl/lib",  # WSL2
    "run/opengl-driver/lib",  # NixOS
    "usr/local/nvidia/lib64",  # GKE, seen from a container
    "home/kubernetes/bin/nvidia/lib64",  # GKE, where the root is the node's
    "usr/local/glibc/usr/lib",  # Talos
    "usr/local/glibc/lib",  # Talos before 1.8.2
    ".",  # the root itself is the folder of the libraries
)
"""Searched in this order: the folders of NVIDIA's own components first, so that we find what they find."""

_MAX_LINKS = 40  # the kernel's own limit
_ET_DYN = 3


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """What a search found and what it passed over.

    ``path`` has no symbolic link left in it. ``root`` is the driver root that holds it. ``driver_version`` comes from
    the file's name, None where the name has none. ``misses`` are (path, reason) in the order of the search: files that
    can't be loaded, and roots that hold none.
    """

    path: Path | None = None
    root: Path | None = None
    driver_version: str | None = None
    misses: tuple[tuple[Path, str], ...] = ()

    def explain(self) -> str:
        """One line for a log."""
        misses = "; ".join(f"{path}: {reason}" for path, reason in self.misses)
        if self.path is None:
            return f"find {LIBRARY_NAME}: not found under any driver root ({misses or 'no driver root given'})"
        passed_over = f" (passed over {misses})" if misses else ""
        return f"found {self.path} under driver root {self.root}{passed_over}"

    def require(self) -> Path:
        """The path. Raises NvmlError LIBRARY_NOT_FOUND, which may heal, with the reasons."""
        if self.path is None:
            raise LibraryError(self.explain())
        return self.path


class LibraryError(NvmlError):
    """The library isn't there or can't be loaded; the driver may still be on its way."""

    def __init__(self, message: str) -> None:
        super().__init__(NvmlCode.LIBRARY_NOT_FOUND, "dlopen")
        self.args = (message,)


@dataclass(frozen=True, slots=True)
class ElfIdent:
    """What decides whether two ELF files can live in one process: 1 is 32-bit, 2 is 64-bit; data 1 is little-endian."""

    elf_class: int
    data: int
    machine: int


def find_library(roots: Sequence[Path], name: str = LIBRARY_NAME, loader: ElfIdent | None = None) -> LibrarySearch:
    """The first loadable ``name`` under ``roots``, in order. ``loader`` is who would load it: this process."""
    wanted = own_ident() if loader is None else loader
    misses: list[tuple[Path, str]] = []
    for root in roots:
        candidates = 0
        for candidate in _candidates(root, name):
            candidates += 1
            try:
                path = resolve_in_root(root, candidate)
                _check_loadable(path, wanted)
            except (OSError, ValueError) as error:
                misses.append((root / candidate, _reason(error)))
                continue
            return LibrarySearch(path, root, _version_in(path.name), tuple(misses))
        if not candidates:
            misses.append((root, _empty_root(root, name)))
    return LibrarySearch(misses=tuple(misses))


def resolve_in_root(root: Path, relative: Path) -> Path:
    """``relative`` with all symbolic links followed, none of which leads out of ``root``. Raises OSError."""
    pending = [*reversed(relative.parts)]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in (os.sep, "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        here = root.joinpath(*done, part)
        if not stat.S_ISLNK(os.lstat(here).st_mode):
            done.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise ValueError("has too many levels of symbolic links")
        target = Path(os.readlink(here))
        if target.is_absolute():
            done.clear()
        pending.extend(reversed(target.parts))
    return root.joinpath(*done)


def own_ident() -> ElfIdent:
    """The ident of the running interpreter."""
    ident, _ = _read_elf(Path(os.path.realpath(sys.executable)))
    return ident


def _candidates(root: Path, name: str) -> Iterator[Path]:
    """Paths relative to ``root`` that exist in some form: the name itself, then its versioned forms, newest first."""
    # ldconfig makes the .so.1 link; a driver unpacked without it has only the versioned file.
    versioned = re.compile(re.escape(name.removesuffix(".1")) + r"\.\d+(\.\d+)+")
    seen: set[Path] = set()
    for folder in FOLDERS:
        try:
            real = resolve_in_root(root, Path(folder))
            entries = os.listdir(real)
        except (OSError, ValueError):
            continue  # a machine has a few of these folders
        if real in seen:
            continue  # lib64 is usr/lib64, mostly
        seen.add(real)
        if name in entries:
            yield Path(folder, name)
        versions = [entry for entry in entries if versioned.fullmatch(entry)]
        yield from (Path(folder, entry) for entry in sorted(versions, key=_version_key, reverse=True))


def _check_loadable(path: Path, wanted: ElfIdent) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("isn't a regular file")
    if not status.st_size:
        raise ValueError("is empty: the driver's files weren't installed or mounted completely")
    ident, kind = _read_elf(path)
    if ident.elf_class != wanted.elf_class:
        raise ValueError(f"is a {32 * ident.elf_class}-bit library, this process is {32 * wanted.elf_class}-bit")
    if (ident.data, ident.machine) != (wanted.data, wanted.machine):
        raise ValueError(f"is for another machine (ELF machine {ident.machine}, this process is {wanted.machine})")
    if kind != _ET_DYN:
        raise ValueError(f"isn't a shared library (ELF type {kind})")


def _read_elf(path: Path) -> tuple[ElfIdent, int]:
    """(ident, e_type) from the first 20 bytes, which mean the same in both classes."""
    with path.open("rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:4] != b"\x7fELF":
        raise ValueError("isn't an ELF file")
    order: Literal["little", "big"] = "big" if header[5] == 2 else "little"
    machine = int.from_bytes(header[18:20], order)
    return ElfIdent(header[4], header[5], machine), int.from_bytes(header[16:18], order)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"is a symbolic link to {os.fspath(error.filename)}, which doesn't exist"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _empty_root(root: Path, name: str) -> str:
    try:
        entries = os.listdir(root)
    except OSError as error:
        return f"can't be read as a driver root ({error.strerror})"
    if not entries:
        return "is empty: not mounted yet, or the driver isn't installed"
    return f"holds no {name} in any of the {len(FOLDERS)} usual folders"


def _version_in(file_name: str) -> str | None:
    match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", file_name)
    return match[1] if match else None


def _version_key(file_name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in (_version_in(file_name) or "0").split("."))
