"""Device nodes that a headless node lacks, and the links that keep GPUs in running containers.

Nobody makes ``/dev/nvidia-uvm`` or a GPU's node on a machine without a display until a root process uses CUDA, and a
claim prepared before would start without them. systemd, when it reloads, rebuilds each container's device rules from
``/dev/char/<major>:<minor>``: a node without that link is taken from running containers. Both are mended here, with
the majors that the kernel says now. The driver's own settings on its nodes (owner, mode, hands off) are followed.

Nothing here raises. What can't be done is reported with what a person has to do.
"""

import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

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
class _Rules:
    """The driver's own (``<proc>/driver/nvidia/params``): whether user space may make nodes, and how."""

    modify: bool = True
    mode: int = 0o666
    uid: int = 0
    gid: int = 0


def ensure_device_nodes(
    dev_root: Path, proc_root: Path, minors: Iterable[int], make_node: MakeNode = os.mknod
) -> NodeReport:
    """Makes the driver's common nodes and ``nvidia<minor>`` for each of ``minors``, replaces those with a stale number,
    and links all NVIDIA nodes, those of MIG capabilities included, from ``<dev_root>/char``."""
    majors = _majors(proc_root)
    rules = _rules(proc_root)
    wanted = [*((f"nvidia{minor}", _GPU_MAJORS, minor) for minor in minors), *_SHARED_NODES]
    made: list[str] = []
    problems: dict[str, str] = {}
    for name, major_names, minor in wanted:
        path = dev_root / name
        major = next((majors[major] for major in major_names if major in majors), None)
        if major is None:
            if not _is_char_device(path) and name != "nvidia-modeset":
                module = _MODULES.get(name, "nvidia")
                problems[str(path)] = f"the kernel module {module} isn't loaded: run modprobe {module}"
            continue
        try:
            if _ensure_node(path, os.makedev(major, minor), rules, make_node):
                made.append(str(path))
        except FileExistsError:
            problems[str(path)] = "something that is no device node is in its place: remove it"
        except OSError as error:
            problems[str(path)] = (
                f"make the device node ({major}:{minor}): {error.strerror or error}; give the agent write access to"
                f" {dev_root} and CAP_MKNOD, or run nvidia-modprobe on the node"
            )
    linked, unlinked = ensure_char_links(dev_root)
    return NodeReport(tuple(made), linked, {**problems, **unlinked})


def ensure_char_links(dev_root: Path) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Links made, and problems by path."""
    linked: list[str] = []
    problems: dict[str, str] = {}
    for node in _nvidia_nodes(dev_root):
        number = node.stat().st_rdev
        link = dev_root / "char" / f"{os.major(number)}:{os.minor(number)}"
        try:
            if _ensure_link(link, Path("..") / node.relative_to(dev_root)):
                linked.append(str(link))
        except OSError as error:
            problems[str(link)] = (
                f"link it to {node}: {error.strerror or error}; without it a systemctl daemon-reload takes the GPU from"
                " running containers"
            )
    return tuple(linked), problems


class DeviceNodeKeeper:
    """``ensure_device_nodes`` for the same node again and again, each problem logged once while it lasts."""

    def __init__(self, dev_root: Path, proc_root: Path) -> None:
        self._dev_root = dev_root
        self._proc_root = proc_root
        self._reported: dict[str, str] = {}

    def ensure(self, minors: Iterable[int]) -> NodeReport:
        report = ensure_device_nodes(self._dev_root, self._proc_root, minors)
        for path in (*report.made, *report.linked):
            log.info("made %s", path)
        for path, problem in report.problems.items():
            if self._reported.get(path) != problem:
                log.warning("%s: %s", path, problem)
        self._reported = dict(report.problems)
        return report


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


def _ensure_node(path: Path, number: int, rules: _Rules, make_node: MakeNode) -> bool:
    """True when the node was made or replaced."""
    if _is_char_device(path):
        if path.stat().st_rdev == number or not rules.modify:
            return False
        path.unlink()
    if not rules.modify:
        raise PermissionError(0, "the driver's parameter NVreg_ModifyDeviceFiles=0 forbids it")
    make_node(path, stat.S_IFCHR | rules.mode, number)
    path.chmod(rules.mode)
    if (rules.uid, rules.gid) != (0, 0):
        os.chown(path, rules.uid, rules.gid)
    return True


def _ensure_link(link: Path, target: Path) -> bool:
    if link.is_symlink() and link.readlink() == target:
        return False
    link.parent.mkdir(exist_ok=True)
    aside = link.with_name(f".{link.name}.gpuclaim")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
    return True


def _nvidia_nodes(dev_root: Path) -> list[Path]:
    found = (*dev_root.glob("nvidia*"), *dev_root.glob("nvidia-caps/nvidia-cap*"))
    return sorted(path for path in found if _is_char_device(path) and not path.is_symlink())


def _is_char_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False
