"""The driver's CDI file: everything that a container needs of the driver whichever GPUs it got.

One file under one name for ever, with one device under one name for ever (``DRIVER_DEVICE``), which every prepared
device names as its second id: a claim's own file stays a few hundred bytes, and a new driver reaches the next
container of every claim. A change is a rename over the file; the same device in two files of a folder would be
unresolvable for everybody. The edits, hooks above all, are the file's, not the device's, so that they apply once
to a container however many devices it has; the device itself carries one harmless variable, since a device without
edits is invalid. No variable here may also be in a claim's file: the later id would win.

With NVIDIA's hook program on the host, links and the loader's cache are made by hooks, as its toolkit does. Without
one, nothing can run in the container, and each library is mounted under every name by which it is looked for, in its
own folder and in those that glibc searches without a cache (Debian's and Red Hat's differ, so both). Limits of the
latter: no CUDA forward compatibility libraries, no protection of ``/proc/driver/nvidia/params``, no help for an image
whose loader was built for other folders, or isn't glibc's (for which the driver has no libraries anyway).

On a machine with no driver at all the file is still valid, so that simulated GPUs can be claimed.
"""

import logging
import os
import posixpath
import threading
from collections.abc import Iterator
from pathlib import Path

from deviceclasses import names
from kubeletplugin.cdi import elf, hooktool, spec
from kubeletplugin.cdi.driverfiles import IPC_PLACES, DriverFiles, Library, find_driver_files
from kubeletplugin.cdi.hooktool import HookTool, find_hook_tool
from kubeletplugin.cdi.hostnodes import HostNodes
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.writer import SpecWriter

DRIVER_DEVICE = "all"
DRIVER_FILE = f"{names.CDI_VENDOR}-{names.CDI_DRIVER_CLASS}.json"
DRIVER_ID = spec.qualified_name(names.CDI_VENDOR, names.CDI_DRIVER_CLASS, DRIVER_DEVICE)

LIBCUDA_FOLDER_VARIABLE = "NVIDIA_CTK_LIBCUDA_DIR"
NO_DRIVER_VARIABLE = "GPUCLAIM_DRIVER_FILES"
VARIABLES = frozenset({LIBCUDA_FOLDER_VARIABLE, NO_DRIVER_VARIABLE})
"""Kept out of every claim's file."""

_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_GLIBC_FOLDERS = {
    elf.MACHINE_X86_64: ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    elf.MACHINE_AARCH64: ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
_PLUGIN_FOLDERS = ("/vdpau/", "/xorg/")
"""Opened by path, never searched for by the loader."""

_log = logging.getLogger(__name__)


def driver_spec(
    files: DriverFiles, root: DriverRoot, nodes: tuple[spec.DeviceNode, ...], tool: HookTool | None
) -> spec.Spec:
    """The file's content; the same input gives the same spec."""
    mounts = [_mount(root, file.source, file.path, ipc=file.ipc) for file in files.files]
    mounts += [_mount(root, lib.file.source, lib.file.path) for lib in files.libraries]
    hooks: tuple[spec.Hook, ...] = ()
    if tool is not None and files.libraries:
        hooks = _hooks(files, tool)
    else:
        mounts += [_mount(root, source, path) for path, source in _further_names(files)]
    if files.libcuda_folder:
        env = {LIBCUDA_FOLDER_VARIABLE: files.libcuda_folder}
    else:
        env = {NO_DRIVER_VARIABLE: "none"}
    unique = {mount.container_path: mount for mount in reversed(mounts)}
    return spec.Spec(
        vendor=names.CDI_VENDOR,
        class_=names.CDI_DRIVER_CLASS,
        devices=(spec.Device(DRIVER_DEVICE, spec.ContainerEdits(env=env)),),
        edits=spec.ContainerEdits(
            device_nodes=nodes, hooks=hooks, mounts=tuple(unique[path] for path in sorted(unique))
        ),
    )


def _mount(root: DriverRoot, source: str, path: str, *, ipc: bool = False) -> spec.Mount:
    options = (*_MOUNT_OPTIONS, "noexec") if ipc else _MOUNT_OPTIONS
    return spec.Mount(host_path=root.host_path(source), container_path=path, options=options)


def _hooks(files: DriverFiles, tool: HookTool) -> tuple[spec.Hook, ...]:
    links = {f"{lib.folder}/{name}": target for lib in files.libraries for name, target in lib.links.items()}
    folders = [arg for folder in files.library_folders for arg in ("--folder", folder)]
    hooks = [
        (hooktool.ENABLE_CUDA_COMPAT, (f"--host-driver-version={files.version}",)),
        (hooktool.UPDATE_LDCACHE, tuple(folders)),
        (hooktool.DISABLE_DEVICE_NODE_MODIFICATION, ()),
    ]
    return (
        *([tool.create_symlinks(dict(sorted(links.items())))] if links else []),
        *(tool.hook(subcommand, *args) for subcommand, args in hooks if subcommand in tool.subcommands),
    )


def _further_names(files: DriverFiles) -> Iterator[tuple[str, str]]:
    """Container path and source of each library under each of its other names and folders."""
    for lib in files.libraries:
        for folder in (lib.folder, *_search_folders(lib)):
            for name in (lib.name, *lib.links):
                yield f"{folder}/{name}", lib.file.source


def _search_folders(lib: Library) -> tuple[str, ...]:
    if any(part in f"{lib.folder}/" for part in _PLUGIN_FOLDERS):
        return ()
    return _GLIBC_FOLDERS.get(lib.elf.machine, ())


class DriverSpecFile:
    """Keeps the driver's file true. Methods block briefly and may be called from any thread; those that write raise
    NotActiveError and RecoverableError."""

    def __init__(
        self,
        writer: SpecWriter,
        nodes: HostNodes,
        driver_root: DriverRoot,
        *,
        host_root: DriverRoot | None = None,
        hook_path: str = "",
    ) -> None:
        """``host_root`` is where hook programs are looked for beside the driver root; ``hook_path`` names one."""
        self._writer = writer
        self._nodes = nodes
        self._root = driver_root
        self._hook_roots = tuple(dict.fromkeys([host_root or driver_root, driver_root]))
        self._hook_path = hook_path
        self._lock = threading.Lock()
        self._version: str | None = None
        self._stamp: object = None
        self._watched: tuple[Path, ...] = ()
        self._told: tuple[str, ...] = ()
        self.hook_tool: HookTool | None = None

    def refresh(self, driver_version: str) -> bool:
        """Looks at everything and writes the file where it differs; True when it did. Called before the first claim
        and whenever the inventory is read anew. An empty version means that this machine has no driver, not that it
        can't be asked just now."""
        with self._lock:
            self._version = driver_version
            return self._refresh(driver_version)

    def ensure(self) -> bool:
        """For every prepare: some twenty stats, and a refresh only when one of them changed or the file is gone.

        Before the first ``refresh`` the file of an earlier run stands as it is."""
        with self._lock:
            if self._version is None:
                return False
            if self._writer.exists(DRIVER_FILE) and self._stamp == self._take_stamp():
                return False
            return self._refresh(self._version)

    def _refresh(self, version: str) -> bool:
        files = find_driver_files(self._root, version)
        self.hook_tool = find_hook_tool(self._hook_roots, self._hook_path)
        self._watched = self._paths_to_watch(files)
        stamp = self._take_stamp()
        content = spec.render(driver_spec(files, self._root, self._nodes.common(), self.hook_tool))
        written = self._writer.write(DRIVER_FILE, content)
        self._stamp = stamp
        self._tell(files)
        return written

    def _paths_to_watch(self, files: DriverFiles) -> tuple[Path, ...]:
        """Folders tell of files that come and go; daemons' sockets are watched by themselves. A mount whose source is
        missing keeps every container from starting."""
        sources = [lib.file.source for lib in files.libraries] + [file.source for file in files.files]
        folders = {posixpath.dirname(source) for source in sources if not source.startswith("/tmp/")}
        sockets = {file.source for file in files.files if file.ipc}
        paths = [self._root.seen(path) for path in sorted({*folders, *sockets, *IPC_PLACES})]
        if self.hook_tool is not None:
            inside = ((root, root.from_host(self.hook_tool.path)) for root in self._hook_roots)
            paths += [root.seen(path) for root, path in inside if path is not None]
        return tuple(paths)

    def _take_stamp(self) -> object:
        return (self._nodes.common(), tuple(_mark(path) for path in self._watched))

    def _tell(self, files: DriverFiles) -> None:
        """Once per finding, not once per look."""
        if files.other_versions and files.other_versions != self._told:
            _log.warning(
                "driver %s is loaded but %s holds libraries of %s only: containers get no libraries; reboot the node "
                "or reload the kernel modules",
                files.version,
                self._root.seen_at,
                ", ".join(files.other_versions),
            )
        self._told = files.other_versions


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
