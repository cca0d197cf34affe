"""Device nodes that a headless node lacks, and the links that keep GPUs in running containers.

Nobody makes ``/dev/nvidia-uvm`` or a GPU's node on a machine without a display until a root process uses CUDA, and a
claim prepared before would start without them. systemd, when it reloads, rebuilds each container's device rules from
the host's ``/dev/char/<major>:<minor>``: a node without that link is taken from running containers, and a MIG
partition's capability, which containers get by its number, needs node and link for that alone. All are mended here,
with the majors that the kernel says now. The driver's own settings on its nodes (owner, mode, hands off) are followed.
A node is made under another name and moved into place, so that one that can't be made costs nothing that was there.

Nothing here raises. What can't be done is reported with what a person has to do.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.inventory import capabilities

log = logging.getLogger(__name__)

CONTROL_MINOR = 255
MODESET_MINOR = 254
_SHARED_NODES = (
    ("nvidiactl", ("nvidiactl", "nvidia", "nvidia-frontend"), CONTROL_MINOR),
    ("nvidia-modeset", ("nvidia-modeset", "nvidia", "nvidia-frontend"), MODESET_MINOR),
    ("nvidia-uvm", ("nvidia-uvm",), 0),
    ("nvidia-uvm-tools", ("nvidia-uvm",), 1),
)
"""Node, the names under which /proc/devices may list its major (they changed over the years), minor."""

_GPU_MAJORS = ("nvidia", "nvidia-frontend")
_MODULES = {"nvidia-uvm": "nvidia-uvm", "nvidia-uvm-tools": "nvidia-uvm", "nvidia-modeset": "nvidia-modeset"}

MakeNode = Callable[[Path, int, int], None]
"""Path, mode, device number; raises OSError."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """``problems`` maps a path to why it is missing or wrong and what to do."""

    made: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodePlace:
    """``nodes`` is the folder with the driver's nodes as the agent sees it: the host's ``/dev``, or the one of a driver
    that is in a container and makes its own; ``on_host`` is what the host calls it. ``dev`` is the host's ``/dev`` as
    the agent sees it."""

    nodes: Path
    on_host: str
    dev: Path

    def target(self, name: str) -> Path:
        """Of a link in ``<dev>/char`` to the node ``name``."""
        return Path("..", name) if self.nodes == self.dev else Path(self.on_host, name)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The driver's own (``<proc>/driver/nvidia/params``): whether user space may make nodes, and how."""

    modify: bool = True
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A node by its path below /dev, the names under which the kernel may list its major, and its minor."""

    name: str
    major_names: tuple[str, ...]
    minor: int
    rules: _Rules
    forbidden_by: str = "the driver's parameter NVreg_ModifyDeviceFiles=0"


class _NodeError(Exception):
    """The text is for people: why, and what to do."""


def ensure_device_nodes(
    place: NodePlace, proc_root: Path, minors: Iterable[int], make_node: MakeNode = os.mknod
) -> NodeReport:
    """Makes the driver's common nodes, ``nvidia<minor>`` for each of ``minors`` and the capabilities of all MIG
    partitions that exist, replaces those with a stale number, and links all NVIDIA nodes from ``<dev>/char``."""
    majors = _majors(proc_root)
    made: list[str] = []
    problems: dict[str, str] = {}
    for wanted in _wanted(proc_root, minors):
        path = place.nodes / wanted.name
        try:
            if _ensure(path, wanted, majors, make_node):
                made.append(str(path))
        except _NodeError as error:
            problems[str(path)] = str(error)
        except OSError as error:
            problems[str(path)] = (
                f"make the device node (minor {wanted.minor}): {error.strerror or error}; give the agent write access"
                f" to {path.parent} and CAP_MKNOD, or run nvidia-modprobe on the node"
            )
    linked, unlinked = ensure_char_links(place)
    return NodeReport(tuple(made), linked, {**problems, **unlinked})


def ensure_char_links(place: NodePlace) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Links made, and problems by path."""
    linked: list[str] = []
    problems: dict[str, str] = {}
    for name, number in _nvidia_nodes(place.nodes):
        link = place.dev / "char" / f"{os.major(number)}:{os.minor(number)}"
        try:
            if _ensure_link(link, place.target(name)):
                linked.append(str(link))
        except OSError as error:
            problems[str(link)] = (
                f"link it to {place.nodes / name}: {error.strerror or error}; without it a systemctl daemon-reload"
                " takes the GPU from running containers"
            )
    return tuple(linked), problems


class DeviceNodeKeeper:
    """``ensure_device_nodes`` for the same node again and again, each problem logged once while it lasts. ``place`` is
    asked each time, since the driver may move."""

    def __init__(self, place: Callable[[], NodePlace], proc_root: Path) -> None:
        self._place = place
        self._proc_root = proc_root
        self._reported: dict[str, str] = {}

    def ensure(self, minors: Iterable[int]) -> NodeReport:
        report = ensure_device_nodes(self._place(), self._proc_root, minors)
        for path in (*report.made, *report.linked):
            log.info("made %s", path)
        for path, problem in report.problems.items():
            if self._reported.get(path) != problem:
                log.warning("%s: %s", path, problem)
        self._reported = dict(report.problems)
        return report


def _wanted(proc_root: Path, minors: Iterable[int]) -> list[_Wanted]:
    rules = _rules(proc_root)
    wanted = [_Wanted(f"nvidia{minor}", _GPU_MAJORS, minor, rules) for minor in minors]
    wanted += [_Wanted(name, major_names, minor, rules) for name, major_names, minor in _SHARED_NODES]
    for access in capabilities.of_all_partitions(proc_root):
        # A partition that goes meanwhile needs no node.
        with contextlib.suppress(OSError, ValueError):
            capability = capabilities.read(access)
            own = _Rules(capability.modify, capability.mode)
            majors = (capabilities.MAJOR_NAME,)
            wanted.append(_Wanted(capability.node, majors, capability.minor, own, f"DeviceFileModify in {access}"))
    return wanted


def _majors(proc_root: Path) -> dict[str, int]:
    """Character devices of ``<proc_root>/devices``, the driver's only."""
    try:
        text = (proc_root / "devices").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name.startswith("nvidia"):
            majors.setdefault(name, int(number))
    return majors


def _rules(proc_root: Path) -> _Rules:
    try:
        text = (proc_root / "driver" / "nvidia" / "params").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _Rules()
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return _Rules(
            modify=values.get("ModifyDeviceFiles", "1").strip() != "0",
            mode=int(values.get("DeviceFileMode", str(0o666))),
            uid=int(values.get("DeviceFileUID", "0")),
            gid=int(values.get("DeviceFileGID", "0")),
        )
    except ValueError:
        return _Rules()


def _ensure(path: Path, wanted: _Wanted, majors: Mapping[str, int], make_node: MakeNode) -> bool:
    """True when the node was made or replaced. Raises _NodeError or OSError."""
    there = _device_number(path)
    major = next((majors[name] for name in wanted.major_names if name in majors), None)
    if major is None:
        if there is None and wanted.name != "nvidia-modeset":
            module = _MODULES.get(wanted.name, "nvidia")
            raise _NodeError(f"the kernel module {module} isn't loaded: run modprobe {module}")
        return False
    number = os.makedev(major, wanted.minor)
    if there == number:
        return False
    if there is None and os.path.lexists(path):
        raise _NodeError("something that is no device node is in its place: remove it")
    if not wanted.rules.modify:
        state = "it is missing" if there is None else f"it has the number {os.major(there)}:{os.minor(there)}"
        raise _NodeError(
            f"{state} and {wanted.forbidden_by} forbids to make it: make it by hand"
            f" (mknod {path.name} c {major} {wanted.minor}), or allow it"
        )
    _make(path, wanted.rules, number, make_node)
    return True


def _make(path: Path, rules: _Rules, number: int, make_node: MakeNode) -> None:
    path.parent.mkdir(mode=0o755, exist_ok=True)
    aside = path.with_name(f".{path.name}.gpuclaim")
    aside.unlink(missing_ok=True)
    make_node(aside, stat.S_IFCHR | rules.mode, number)
    try:
        aside.chmod(rules.mode)
        if (rules.uid, rules.gid) != (0, 0):
            os.chown(aside, rules.uid, rules.gid)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def _ensure_link(link: Path, target: Path) -> bool:
    if link.is_symlink() and link.readlink() == target:
        return False
    link.parent.mkdir(exist_ok=True)
    aside = link.with_name(f".{link.name}.gpuclaim")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
    return True


def _nvidia_nodes(nodes: Path) -> list[tuple[str, int]]:
    """Path below ``nodes`` and device number."""
    found = sorted((*nodes.glob("nvidia*"), *nodes.glob(f"{capabilities.FOLDER}/nvidia-cap*")))
    numbered = ((path, _device_number(path)) for path in found if not path.is_symlink())
    return [(str(path.relative_to(nodes)), number) for path, number in numbered if number is not None]


def _device_number(path: Path) -> int | None:
    """None where there is no character device."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None
