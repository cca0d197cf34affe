"""The driver's device nodes as a container gets them, read from the host each time.

A major number may change with every load of a module, so nothing here is remembered. The kernel's own list
(``/proc/devices``) decides the major and the driver's fixed scheme the minor, where the kernel lists the driver: then
a stale node on the host (of an earlier module load) doesn't reach a container. Otherwise the node's own numbers
count. That a node is there at all is asked of the host's ``/dev`` always: a GPU without one is not ready.

A simulated machine has a tree of its own, in which anything may stand in for a device node; its ``/proc/devices``
gives the numbers, by the same rule.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.spec import DeviceNode
from kubeletplugin.errors import ClaimError
from kubeletplugin.inventory import capabilities

COMMON_NODES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
"""What every container with a GPU needs, where the module behind it is loaded."""

_DEFAULT_MODE = 0o666
# Drivers before 555 register one range named nvidia-frontend for GPUs, control and modeset.
_FRONTEND = ("nvidia", "nvidia-frontend")
_FIXED_MINORS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "nvidiactl": (("nvidiactl", *_FRONTEND), 255),
    "nvidia-modeset": (("nvidia-modeset", *_FRONTEND), 254),
    "nvidia-uvm": (("nvidia-uvm",), 0),
    "nvidia-uvm-tools": (("nvidia-uvm",), 1),
}
_NUMBERED = (
    (re.compile(r"nvidia(\d+)"), _FRONTEND),
    (re.compile(r"card(\d+)"), ("drm",)),
    (re.compile(r"renderD(\d+)"), ("drm",)),
)


@dataclass(frozen=True, slots=True)
class FoundNode:
    """What is at a path. ``is_char_device`` False: the numbers mean nothing."""

    is_char_device: bool
    major: int = 0
    minor: int = 0
    mode: int = _DEFAULT_MODE


class DeviceNodeReader(Protocol):
    def __call__(self, path: Path) -> FoundNode | None:
        """None when nothing is there."""


def read_node(path: Path) -> FoundNode | None:
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return FoundNode(is_char_device=False)
    return FoundNode(True, os.major(status.st_rdev), os.minor(status.st_rdev), stat.S_IMODE(status.st_mode))


def find_dev_root(driver_root: DriverRoot, host_root: DriverRoot) -> DriverRoot:
    """Where the device nodes are: a driver in a container makes its own, every other uses the host's."""
    return driver_root if driver_root.seen("/dev/nvidiactl").exists() else host_root


class HostNodes:
    """Device nodes in the ``dev`` folder of a root, with ``proc`` and ``sys`` of the same machine. Blocks briefly."""

    def __init__(
        self,
        dev: DriverRoot,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        read: DeviceNodeReader = read_node,
    ) -> None:
        self.dev = dev
        self._proc = proc
        self._sys = sys
        self._read = read

    def gpu(self, minor: int) -> DeviceNode | None:
        """The GPU's node, None when the host has none."""
        return self._node(f"/dev/nvidia{minor}", self._majors())

    def common(self) -> tuple[DeviceNode, ...]:
        majors = self._majors()
        nodes = (self._node(path, majors) for path in COMMON_NODES)
        return tuple(node for node in nodes if node is not None)

    def drm(self, pci_bus_id: str) -> tuple[DeviceNode, ...]:
        """The GPU's display and render nodes, none without nvidia-drm. ``pci_bus_id`` in sysfs form."""
        try:
            names = sorted(os.listdir(self._sys / "bus/pci/devices" / pci_bus_id / "drm"))
        except OSError:
            return ()
        majors = self._majors()
        nodes = (self._node(f"/dev/dri/{name}", majors) for name in names if name.startswith(("card", "renderD")))
        return tuple(node for node in nodes if node is not None)

    def drm_links(self, nodes: tuple[DeviceNode, ...]) -> dict[str, str]:
        """Links of ``/dev/dri/by-path`` that lead to one of ``nodes``: path to target as the host has it."""
        names = {Path(node.path).name for node in nodes}
        folder = "/dev/dri/by-path"
        links = {}
        try:
            entries = sorted(os.listdir(self.dev.seen(folder)))
        except OSError:
            return {}
        for entry in entries:
            try:
                target = os.readlink(self.dev.seen(f"{folder}/{entry}"))
            except OSError:
                continue
            if Path(target).name in names:
                links[f"{folder}/{entry}"] = target
        return links

    def mig_caps(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
        """The two capability nodes that give access to one MIG partition and to no other.

        They need not exist on the host. Raises ClaimError when the driver doesn't list them.
        """
        files = capabilities.of_partition(self._proc, gpu_minor, gpu_instance, compute_instance)
        major = self._majors().get(capabilities.MAJOR_NAME)
        if major is None:
            raise ClaimError(
                f"find the MIG capabilities of GPU minor {gpu_minor}: {self._proc / 'devices'} lists no "
                f"{capabilities.MAJOR_NAME}; load the NVIDIA driver with MIG support on the node"
            )
        return tuple(self._caps_node(path, major) for path in files)

    def _caps_node(self, access: Path, major: int) -> DeviceNode:
        try:
            capability = capabilities.read(access)
        except (OSError, ValueError) as error:
            raise ClaimError(
                f"read {access}: {type(error).__name__}; the partition is gone or its driver is reloading, so look at "
                "nvidia-smi -L on the node"
            ) from error
        return DeviceNode(
            path=f"/dev/{capability.node}",
            type="c",
            major=major,
            minor=capability.minor,
            file_mode=capability.mode,
        )

    def _node(self, path: str, majors: Mapping[str, int]) -> DeviceNode | None:
        found = self._read(self.dev.seen(path))
        if found is None:
            return None
        numbers = _known_numbers(Path(path).name, majors)
        if numbers is None:
            if not found.is_char_device:
                return None
            numbers = (found.major, found.minor)
        host_path = self.dev.host_path(path)
        return DeviceNode(
            path=path,
            # Where it says nothing it is left out: it takes readers of CDI 0.5.0.
            host_path=host_path if host_path != path else "",
            type="c",
            major=numbers[0],
            minor=numbers[1],
            file_mode=found.mode,
            permissions="rwm",
        )

    def _majors(self) -> dict[str, int]:
        """Char device majors by driver name; empty when the kernel's list can't be read."""
        try:
            text = (self._proc / "devices").read_text()
        except OSError:
            return {}
        characters = text.partition("Block devices:")[0]
        return {name: int(major) for major, name in re.findall(r"^\s*(\d+)\s+(\S+)\s*$", characters, re.MULTILINE)}


def _known_numbers(name: str, majors: Mapping[str, int]) -> tuple[int, int] | None:
    """Numbers by the driver's scheme; None when the kernel doesn't list the driver."""
    drivers: tuple[str, ...] = ()
    minor = 0
    if name in _FIXED_MINORS:
        drivers, minor = _FIXED_MINORS[name]
    else:
        for pattern, candidates in _NUMBERED:
            if match := pattern.fullmatch(name):
                drivers, minor = candidates, int(match[1])
                break
    major = next((majors[driver] for driver in drivers if driver in majors), None)
    return None if major is None else (major, minor)
