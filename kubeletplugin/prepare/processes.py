"""Looking for pods' processes: in the pods' cgroups, and on the devices.

A pod's cgroup is known by its UID alone, so this works when the API server has forgotten the pod. All of its
processes count, the pause process, too: it is what a pod that has resolved its devices but not started yet has. The
layouts are those of both cgroup drivers, on cgroup v1 (every hierarchy) and v2:

- cgroupfs: ``.../kubepods[/burstable|/besteffort]/pod<uid>``
- systemd: ``.../kubepods.slice[/kubepods-burstable.slice]/kubepods[-burstable]-pod<uid with _ for ->.slice``, with
  the slices above in each name when the kubelet has a cgroup root of its own (kind: ``kubelet-kubepods-...``)

On a device NVML lists processes by pid, and /proc says whose pod they are; those of no pod (a monitor's, a
display's) don't count. Both need the host's PID namespace: in another one cgroup v1 leaves foreign processes out of
cgroup.procs and the GPU driver hides them, which looks like "none". A look that can't see says so.
"""

import asyncio
import errno
import functools
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.prepare.ports import Look, Offload, in_thread

log = logging.getLogger(__name__)

_QOS = ("", "burstable", "besteffort")
_ROOT_DEPTH = 3
"""How deep below a hierarchy the pods' root may be: the usual root of a kubelet's own is /kubelet[.slice]."""

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=\.slice|/|$)")
"""A pod's directory in a cgroup path; static pods have a UID of 32 hex digits."""

_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})


class DevicePids(Protocol):
    """Pids of the processes on a device (NVML's, through its worker)."""

    async def pids(self, device: HeldDevice) -> Collection[int]:
        """Of the partition alone, for a partition. Raises NvmlError."""


class BlindError(Exception):
    """Can't see; the text says why."""


class PodProcesses:
    """Implements ports.Processes."""

    def __init__(
        self, cgroups: "PodCgroups", device_pids: DevicePids | None = None, *, offload: Offload = in_thread
    ) -> None:
        """Without ``device_pids`` only cgroups are looked at."""
        self._cgroups = cgroups
        self._device_pids = device_pids
        self._offload = offload

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Look:
        alive: Mapping[str, frozenset[int]] = {}
        blind = ""
        try:
            alive = await self._offload(functools.partial(self._cgroups.pids_of, pods))
        except Exception as error:
            blind = _why_blind(error)
        on_device: dict[str, Mapping[str, frozenset[int]]] = {}
        blind_devices: dict[str, str] = {}
        by_uuid = {device.uuid: device for device in devices}
        # At once: drivers that hang cost the caller one deadline, not one each.
        found = await asyncio.gather(*map(self._on_device, by_uuid.values()), return_exceptions=True)
        for uuid, pids in zip(by_uuid, found, strict=True):
            if isinstance(pids, Exception):
                blind_devices[uuid] = _why_blind(pids)
            elif isinstance(pids, BaseException):
                raise pids
            else:
                on_device[uuid] = pids
        return Look(alive, on_device, blind, blind_devices)

    async def _on_device(self, device: HeldDevice) -> Mapping[str, frozenset[int]]:
        if self._device_pids is None:
            return {}
        try:
            pids = await self._device_pids.pids(device)
        except NvmlError as error:
            if error.unsupported:
                return {}  # such a device has no list; the cgroups have to do
            raise BlindError(f"ask NVML for processes on {device.name}: {error}") from error
        return await self._offload(functools.partial(self._cgroups.by_pod, pids))


def _why_blind(error: Exception) -> str:
    """A look never raises: what nobody foresaw is one that couldn't see, and is shown with its stack."""
    if isinstance(error, BlindError):
        return str(error)
    log.error("look for processes", exc_info=error)
    return f"{type(error).__name__}: {error}"


class PodCgroups:
    """Blocking file I/O. ``cgroup_root`` is the host's /sys/fs/cgroup, ``proc_root`` the host's /proc."""

    def __init__(self, cgroup_root: Path, proc_root: Path) -> None:
        self._cgroup_root = cgroup_root
        self._proc_root = proc_root

    def pids_of(self, pods: Collection[str]) -> Mapping[str, frozenset[int]]:
        """Pids of those of ``pods`` that have any. Raises BlindError."""
        if not pods:
            return {}
        self._check_namespace()
        roots = tuple(self._kubepods_roots())
        if not roots:
            raise BlindError(f"no kubepods cgroup under {self._cgroup_root}")
        found = {pod: frozenset(self._pod_pids(roots, pod)) for pod in pods}
        return {pod: pids for pod, pids in found.items() if pids}

    def by_pod(self, pids: Iterable[int]) -> Mapping[str, frozenset[int]]:
        """``pids`` by the UID of their pod; without those that have ended or are of no pod. Raises BlindError, also for
        none: in another PID namespace the GPU driver would have hidden them."""
        self._check_namespace()
        found: dict[str, frozenset[int]] = {}
        for pid in sorted(pids):
            pod = self._pod_of(pid)
            if pod:
                found[pod] = found.get(pod, frozenset()) | {pid}
        return found

    def _check_namespace(self) -> None:
        """The host's /proc calls this process by the pid that it has in the host's PID namespace; a /proc of our own
        shows in process 1 one of our own pod."""
        try:
            pid = (self._proc_root / "self").resolve(strict=True).name
        except OSError as error:
            raise BlindError(f"read {self._proc_root / 'self'}: {error.strerror}") from error
        own = self._pod_of_path("self")
        if pid != str(os.getpid()) or not self._shares_namespace() or (own and own == self._pod_of_path("1")):
            raise BlindError("this process isn't in the host's PID namespace (hostPID)")

    def _shares_namespace(self) -> bool:
        """With process 1; True where that can't be told, for want of the right to trace it."""
        own, first = (self._proc_root / process / "ns" / "pid" for process in ("self", "1"))
        try:
            return own.readlink() == first.readlink()
        except OSError:
            return True

    def _pod_of(self, pid: int) -> str:
        return self._pod_of_path(str(pid))

    def _pod_of_path(self, process: str) -> str:
        path = self._proc_root / process / "cgroup"
        try:
            text = path.read_text()
        except OSError as error:
            if error.errno in _GONE and self._proc_root.joinpath("self").exists():
                return ""
            raise BlindError(f"read {path}: {error.strerror}") from error
        match = _POD.search(text.replace("\n", "/\n"))
        return match[1].replace("_", "-") if match else ""

    def _kubepods_roots(self) -> Iterator[Path]:
        try:
            hierarchies = [self._cgroup_root, *_directories(self._cgroup_root)]
        except OSError as error:
            raise BlindError(f"read {self._cgroup_root}: {error.strerror}") from error
        seen: set[Path] = set()
        for hierarchy in hierarchies:
            for root in _find_kubepods(hierarchy, _ROOT_DEPTH):
                if root not in seen:
                    seen.add(root)
                    yield root

    def _pod_pids(self, roots: Iterable[Path], pod: str) -> set[int]:
        pids: set[int] = set()
        for root in roots:
            for qos in _QOS:
                pids |= _subtree_pids(_pod_directory(root, qos, pod))
        return pids


def _find_kubepods(directory: Path, depth: int) -> Iterator[Path]:
    """Kubelets' pod roots below ``directory``, which may go meanwhile. Only what a kubelet would be under is descended
    into."""
    try:
        children = _directories(directory)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise BlindError(f"read {directory}: {error.strerror}") from error
    for child in children:
        if child.name == "kubepods" or child.name.endswith("kubepods.slice"):
            yield child
        elif depth > 1 and child.name.startswith("kubelet"):
            yield from _find_kubepods(child, depth - 1)


def _pod_directory(root: Path, qos: str, pod: str) -> Path:
    if not root.name.endswith(".slice"):
        return root / qos / f"pod{pod}"
    prefix = root.name.removesuffix(".slice")
    parent = root / f"{prefix}-{qos}.slice" if qos else root
    return parent / f"{parent.name.removesuffix('.slice')}-pod{pod.replace('-', '_')}.slice"


def _subtree_pids(directory: Path) -> set[int]:
    """Pids in ``directory`` and below; a directory that isn't there, or goes meanwhile, has none."""
    try:
        pids = _read_pids(directory)
        children = _directories(directory)
    except OSError as error:
        if error.errno in _GONE:
            return set()
        raise BlindError(f"read {directory}: {error.strerror}") from error
    for child in children:
        pids |= _subtree_pids(child)
    return pids


def _read_pids(directory: Path) -> set[int]:
    """0 stands for a process of a PID namespace that we can't see into (cgroup v2): it is there all the same."""
    try:
        text = (directory / "cgroup.procs").read_text()
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # a threaded cgroup lists threads only
            raise
        text = (directory / "cgroup.threads").read_text()
    return {int(word) for word in text.split()}


def _directories(directory: Path) -> list[Path]:
    return sorted(entry for entry in directory.iterdir() if entry.is_dir() and not entry.is_symlink())
