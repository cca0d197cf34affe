"""A simulated NVML: any of the shipped machines, or one from a file, with its state in one file per node.

It ships with the product, because trying gpuclaim without hardware is a feature. ``open_simulated`` is what the agent
uses; ``SimulatedNode`` changes the node from outside; ``state`` documents the file.
"""

import logging
from pathlib import Path

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated.layout import LayoutError, MigLayout, apply_layout, load_layout, parse_mig_flag
from kubeletplugin.nvml.simulated.node import SimulatedNode
from kubeletplugin.nvml.simulated.nvml import SimulatedNvml
from kubeletplugin.nvml.simulated.profile import MachineError, load_profile, machine_names
from kubeletplugin.nvml.simulated.state import NodeState, first_state
from kubeletplugin.nvml.simulated.store import StateFileError, StateStore

__all__ = [
    "STATE_FILE",
    "LayoutError",
    "MachineError",
    "MigLayout",
    "SimulatedNode",
    "SimulatedNvml",
    "StateFileError",
    "load_layout",
    "load_profile",
    "machine_names",
    "open_node",
    "open_simulated",
    "parse_mig_flag",
]

STATE_FILE = "simulated-node.json"

log = logging.getLogger(__name__)


def open_simulated(machine: str, state: Path, mig: MigLayout | None = None) -> SimulatedNvml:
    """The NVML of the simulated node at ``state``; see ``open_node``."""
    return open_node(machine, state, mig).nvml()


def open_node(machine: str, state: Path, mig: MigLayout | None = None) -> SimulatedNode:
    """The simulated node whose state is at ``state``, a ``.json`` file or a folder for one.

    A node that isn't there yet is made as ``machine`` (a shipped profile's name or a file) with the layout ``mig``;
    one that is keeps its partitions, whatever ``mig`` says. Raises MachineError, LayoutError, StateFileError, and
    FatalError when the file is another machine's.
    """
    path = state if state.suffix == ".json" else state / STATE_FILE
    profile = load_profile(machine)
    name = machine if machine in machine_names() else str(Path(machine).resolve())

    def first() -> NodeState:
        made = first_state(name, profile)
        apply_layout(made, profile, mig or {})
        return made

    if not StateStore.create(path, first) and mig:
        log.info("keep the partitions of the simulated node %s: it was made before, its MIG layout is its own", path)
    node = SimulatedNode(path)
    if node.state().machine != name:
        raise FatalError(
            f"open simulated node {path}: it is machine {node.state().machine}, not {name}; "
            "remove the file or give another folder"
        )
    return node
