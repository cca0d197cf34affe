"""Which of the host's files a container needs to use the NVIDIA driver, found by looking, not by a package's list.

User-space libraries must be of the very version of the loaded kernel module, so a library belongs to the driver when
its name ends in ``.so.<version>``. Everything else (tools, GSP firmware, sockets of the driver's daemons, files by
which graphics loaders find their vendor) goes by name. Nothing missing is an error: machines without a part of the
driver are common, and a machine with none gives an empty answer.

A file is mounted at the path at which the driver has it inside its root: libraries with links resolved, as NVIDIA's
toolkit does, so that a container built for one sees the same with the other.
"""

import fnmatch
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.cdi.elf import ElfFacts, read_elf
from kubeletplugin.cdi.roots import DriverRoot

_LIBRARY_ROOTS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/glibc/usr/lib",  # Talos
    "/run/opengl-driver/lib",  # NixOS
)
# Debian keeps the driver in nvidia/current, JetPack in nvidia, everybody the video decoder's in vdpau.
_LIBRARY_SUBFOLDERS = ("", "nvidia/current", "nvidia", "vdpau")
_BINARY_FOLDERS = (
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/opt/bin",
    "/usr/local/nvidia/bin",
)
_BINARIES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
)
_FIRMWARE_FOLDERS = ("/lib/firmware/updates", "/lib/firmware", "/usr/lib/firmware")
_RUN_FOLDERS = ("/run", "/var/run")
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_MPS_FOLDER = "/tmp/nvidia-mps"
IPC_PLACES = (*(f"{run}/{posixpath.dirname(socket)}" for run in _RUN_FOLDERS for socket in _SOCKETS), _MPS_FOLDER)
"""Where the driver's daemons show that they have come or gone."""
_CONFIG_FOLDERS = ("/etc", "/usr/share", "/usr/local/share")
_CONFIGS = (
    "glvnd/egl_vendor.d/*nvidia*.json",
    "egl/egl_external_platform.d/*nvidia*.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
# Some installers put these at the root's top (GKE); loaders in a container look in /etc/vulkan in every case.
_VULKAN_FOLDERS = (*_CONFIG_FOLDERS, "/")
_VULKAN = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
_XORG_FOLDERS = tuple(
    f"{base}/xorg/modules/{sub}"
    for base in ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
    for sub in ("drivers", "extensions", "updates/drivers", "updates/extensions")
)
# The EGL platform libraries have versions of their own (1.1.13).
_UNVERSIONED_LIBRARY = re.compile(r"libnvidia-egl-[a-z0-9]+\.so\.\d+\.\d+(\.\d+)*")
_ANY_LIBCUDA = re.compile(r"libcuda\.so\.(\d{3,}(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class DriverFile:
    """``source`` is the file's path inside the driver root, links resolved; ``path`` where the container gets it."""

    source: str
    path: str
    ipc: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """``links``: further names, relative to the library's folder, under which programs look for it, each with the text
    of the link that leads there."""

    file: DriverFile
    elf: ElfFacts
    links: dict[str, str]

    @property
    def folder(self) -> str:
        return posixpath.dirname(self.file.path)

    @property
    def name(self) -> str:
        return posixpath.basename(self.file.path)


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """``other_versions``: versions of libcuda found when none of the wanted one was."""

    version: str
    libraries: tuple[Library, ...] = ()
    files: tuple[DriverFile, ...] = ()
    other_versions: tuple[str, ...] = ()

    @property
    def library_folders(self) -> tuple[str, ...]:
        """Folders for the loader's cache, in the order of their libraries' search."""
        return tuple(dict.fromkeys(lib.folder for lib in self.libraries if "/xorg/" not in lib.folder))

    @property
    def libcuda_folder(self) -> str:
        """Where the container finds libcuda, empty without one."""
        return next((lib.folder for lib in self.libraries if lib.name.startswith("libcuda.so.")), "")


def find_driver_files(root: DriverRoot, version: str) -> DriverFiles:
    """Looks under ``root`` for the files of driver ``version`` (as NVML prints it; empty means that there is none, and
    gives nothing).

    Reads some fifty small pieces of files: milliseconds, on a thread that may block.
    """
    if not version:
        return DriverFiles(version)
    folders = list(_library_folders(root))
    libraries = _libraries(root, folders, version)
    wanted = [*_binaries(root), *_firmware(root, version), *_ipc(root), *_graphics(root)]
    others: set[str] = set()
    if not any(lib.name.startswith("libcuda.so.") for lib in libraries):
        others = {m[1] for _, names in folders for n in names if (m := _ANY_LIBCUDA.fullmatch(n))} - {version}
    return DriverFiles(
        version,
        tuple(sorted(libraries, key=lambda lib: lib.file.path)),
        tuple(sorted(wanted, key=lambda file: file.path)),
        tuple(sorted(others)),
    )


def _library_folders(root: DriverRoot) -> Iterator[tuple[str, list[str]]]:
    """Existing library folders, links resolved, each once, with what is in them."""
    seen: set[str] = set()
    for base in _LIBRARY_ROOTS:
        for sub in _LIBRARY_SUBFOLDERS:
            folder = root.resolve(posixpath.join(base, sub).rstrip("/"))
            if folder is not None and folder not in seen:
                seen.add(folder)
                yield folder, _list(root, folder)


def _libraries(root: DriverRoot, folders: list[tuple[str, list[str]]], version: str) -> list[Library]:
    """A name found in two folders counts in the first: two copies would shadow each other in the container."""
    found: dict[str, Library] = {}
    suffix = f".so.{version}"
    candidates = [(folder, n) for folder, names in folders for n in names if _is_driver_library(n, suffix)]
    xorg = ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}")
    candidates += [(folder, name) for folder in _XORG_FOLDERS for name in xorg]
    for folder, name in candidates:
        if name in found:
            continue
        source = root.resolve(f"{folder}/{name}")
        if source is None or not root.seen(source).is_file():
            continue
        elf = _read_elf(root.seen(source))
        if elf.bits == 32:
            continue
        # A link to a file of another name (a package's own scheme) keeps the name that programs ask for.
        path = source if posixpath.basename(source) == name else f"{folder}/{name}"
        found[name] = Library(DriverFile(source, path), elf, _links(name, elf, suffix))
    return list(found.values())


def _is_driver_library(name: str, suffix: str) -> bool:
    return (name.startswith("lib") and name.endswith(suffix)) or bool(_UNVERSIONED_LIBRARY.fullmatch(name))


def _links(name: str, elf: ElfFacts, suffix: str) -> dict[str, str]:
    """Names relative to the library's folder, and what each link says.

    The loader asks by SONAME; the rest are names by which programs open a library that isn't linked. Where the
    SONAME can't be read the driver's common ``.so.1`` is taken: a name too many does no harm.
    """
    links: dict[str, str] = {}
    stem = name.removesuffix(suffix) if name.endswith(suffix) else name.partition(".so.")[0]
    if ".so." in name:
        soname = elf.soname or f"{stem}.so.1"
        if soname != name:
            links[soname] = name
    if not name.endswith(suffix):
        return links
    match stem:
        case "libcuda" | "libnvidia-opticalflow":
            links[f"{stem}.so"] = f"{stem}.so.1"
        case "libnvidia-vulkan-producer" | "libglxserver_nvidia":
            links[f"{stem}.so"] = name
        case "libGLX_nvidia":
            links["libGLX_indirect.so.0"] = name
        case "libnvidia-allocator":
            links["gbm/nvidia-drm_gbm.so"] = "../libnvidia-allocator.so.1"
    return links


def _read_elf(path: Path) -> ElfFacts:
    try:
        return read_elf(path)
    except OSError:
        return ElfFacts()


def _binaries(root: DriverRoot) -> Iterator[DriverFile]:
    for name in _BINARIES:
        yield from _first(root, (f"{folder}/{name}" for folder in _BINARY_FOLDERS))


def _firmware(root: DriverRoot, version: str) -> Iterator[DriverFile]:
    for base in _FIRMWARE_FOLDERS:
        folder = f"{base}/nvidia/{version}"
        names = [n for n in _list(root, folder) if fnmatch.fnmatch(n, "gsp*.bin")]
        if names:
            for name in names:
                yield from _first(root, [f"{folder}/{name}"])
            return


def _ipc(root: DriverRoot) -> Iterator[DriverFile]:
    wanted = [[f"{run}/{socket}" for run in _RUN_FOLDERS] for socket in _SOCKETS]
    for paths in [*wanted, [_MPS_FOLDER]]:
        for file in _first(root, paths):
            yield DriverFile(file.source, file.path, ipc=True)


def _graphics(root: DriverRoot) -> Iterator[DriverFile]:
    for pattern in _CONFIGS:
        folder, glob = posixpath.split(pattern)
        names = {n for base in _CONFIG_FOLDERS for n in _list(root, f"{base}/{folder}") if fnmatch.fnmatch(n, glob)}
        for name in sorted(names):
            yield from _first(root, (f"{base}/{folder}/{name}" for base in _CONFIG_FOLDERS))
    for name in _VULKAN:
        for file in _first(root, (posixpath.join(base, name) for base in _VULKAN_FOLDERS)):
            yield DriverFile(file.source, f"/etc/{name}")


def _first(root: DriverRoot, paths: Iterable[str]) -> Iterator[DriverFile]:
    for path in paths:
        source = root.resolve(path)
        if source is not None:
            yield DriverFile(source, path)
            return


def _list(root: DriverRoot, folder: str) -> list[str]:
    resolved = root.resolve(folder)
    if resolved is None:
        return []
    try:
        return sorted(os.listdir(root.seen(resolved)))
    except OSError:
        return []
