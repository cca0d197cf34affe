"""A host tree for a simulated node: what gpuclaim reads of the host besides NVML, below a folder of its own.

``/sys/bus/pci``, ``/proc/driver/nvidia`` with the MIG capabilities, ``/proc/devices``, the boot id, ``/dev/nvidia*``
and an installed driver (libraries, binaries, firmware). The tree follows the node's state: ``sync`` writes what has
changed since the last time and removes what is gone, and touches nothing else, so that links and nodes made by others
stay, and what a test removed on purpose stays removed.

Device nodes, by ``nodes``: ``null`` makes character devices that behave like /dev/null, so that containers with them
really start; ``real`` gives them the driver's own numbers, so that they show what a real host shows but can't be
opened; ``placeholder`` makes regular files, which is all that is possible without root and serves everything but
containers; ``none`` is a headless host where nobody has made them yet. A kernel that refuses to make device nodes
turns the first two into ``placeholder``.
"""

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Literal

from kubeletplugin.nvml.simulated.driver_files import driver_files
from kubeletplugin.nvml.simulated.host_files import Entry, File, Link, Node, host_files
from kubeletplugin.nvml.simulated.schema import MachineProfile
from kubeletplugin.nvml.simulated.state import NodeState, TreeState, first_state

Nodes = Literal["none", "placeholder", "null", "real"]

_MANIFEST = ".simulated-node.json"
_NULL_DEVICE = os.makedev(1, 3)


def materialise(
    profile: MachineProfile, root: Path, state: NodeState | None = None, *, device_nodes: bool = False
) -> None:
    """Write the whole tree under ``root``, once; ``SimulatedNode.materialise`` writes one that follows the state.

    ``device_nodes`` asks for nodes that containers can open (root only); else they are regular files.
    """
    write(profile, root, state or first_state(profile.id, profile), "null" if device_nodes else "placeholder")


def sync(profile: MachineProfile, state: NodeState) -> None:
    """Bring the tree that ``state`` names up to date, if it names one."""
    if state.tree is not None:
        _apply(_wanted(profile, state, state.tree.nodes), Path(state.tree.root), _read_manifest(Path(state.tree.root)))


def write(profile: MachineProfile, root: Path, state: NodeState, nodes: Nodes) -> TreeState:
    """Write everything anew, also what someone removed from the tree since; returns what ``state.tree`` is to be."""
    root.mkdir(parents=True, exist_ok=True)
    known = dict.fromkeys(_read_manifest(root), "")
    _apply(_wanted(profile, state, nodes), root, known)
    return TreeState(root=str(root.resolve()), nodes=nodes)


def _wanted(profile: MachineProfile, state: NodeState, nodes: Nodes) -> dict[str, Entry]:
    wanted = {**host_files(profile, state), **driver_files(profile, state.driver.version)}
    kept: dict[str, Entry] = {}
    for path, entry in wanted.items():
        if not isinstance(entry, Node):
            kept[path] = entry
        elif nodes == "placeholder":
            kept[path] = File(b"", entry.mode)
        elif nodes != "none":
            kept[path] = Node(entry.device if nodes == "real" else _NULL_DEVICE, entry.mode, entry.boot_id)
    return kept


def _apply(wanted: dict[str, Entry], root: Path, known: dict[str, str]) -> None:
    manifest = {path: entry.signature for path, entry in wanted.items()}
    scratch = root / ".scratch"
    scratch.mkdir(exist_ok=True)
    for path in sorted(set(known) - set(manifest), reverse=True):
        _remove(root, path)
    for path, entry in wanted.items():
        if known.get(path) != manifest[path]:
            _place(root / path, entry, scratch / "entry")
    shutil.rmtree(scratch)
    if manifest != known:
        (root / _MANIFEST).write_text(json.dumps(manifest, indent=0))


def _read_manifest(root: Path) -> dict[str, str]:
    try:
        known = json.loads((root / _MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return {str(path): str(signature) for path, signature in known.items()}


def _place(path: Path, entry: Entry, temporary: Path) -> None:
    """Readers of the tree never see half a file: it is made elsewhere and moved in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.unlink(missing_ok=True)
    match entry:
        case Link(target):
            temporary.symlink_to(target)
        case File(content, mode):
            temporary.write_bytes(content)
            temporary.chmod(mode)
        case Node(device, mode):
            _make_node(temporary, device, mode)
    temporary.replace(path)


def _make_node(path: Path, device: int, mode: int) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | mode, device)
    except PermissionError:
        path.touch()
    path.chmod(mode)


def _remove(root: Path, path: str) -> None:
    """With the folders that it leaves empty, as sysfs and procfs do."""
    target = root / path
    target.unlink(missing_ok=True)
    for parent in target.parents:
        if parent == root or not parent.is_dir() or any(parent.iterdir()):
            return
        parent.rmdir()
