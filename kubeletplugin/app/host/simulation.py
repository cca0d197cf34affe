"""The simulated machine under the agent (``--machine``): its profile, MIG layout, state file and file trees."""

import os
from collections.abc import Collection
from pathlib import Path

from kubeletplugin.app.host.hardware import Hardware
from kubeletplugin.app.settings import Settings
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.errors import FatalError
from kubeletplugin.inventory.simulated import simulated_surroundings
from kubeletplugin.nvml.simulated import (
    STATE_FILE,
    LayoutError,
    MachineError,
    MigLayout,
    StateFileError,
    load_layout,
    load_profile,
    open_node,
    parse_mig_flag,
)


def check(settings: Settings) -> None:
    """Raises FatalError for a machine or layout that doesn't exist."""
    load_profile(settings.machine)
    mig_layout(settings.mig)


def open_simulated(settings: Settings, state: Path | None) -> Hardware:
    path = state or settings.plugin_dir / STATE_FILE
    if path.suffix != ".json":
        raise FatalError(f"keep the simulated machine in {path}: --machine-state is a file whose name ends in .json")
    try:
        profile = load_profile(settings.machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        node = open_node(settings.machine, path, mig_layout(settings.mig))
        if node.state().tree is None:
            node.materialise(path.with_suffix(".tree"), "real" if os.geteuid() == 0 else "placeholder")
    except (MachineError, LayoutError, StateFileError) as error:
        raise FatalError(str(error)) from error
    except OSError as error:
        raise FatalError(f"make the simulated machine {path}: {error.strerror}") from error
    kept = node.state().tree
    tree = Path(kept.root) if kept else path.with_suffix(".tree")
    root = DriverRoot(tree, str(tree))
    around = simulated_surroundings(profile, tree)
    return Hardware(node.nvml(), around, tree / "proc", tree / "sys", root, lambda: root)


def mig_layout(flags: Collection[str]) -> MigLayout:
    """Flags of the form 0=1g.10gb, or the path of one layout file. Raises LayoutError."""
    files = [flag for flag in flags if "=" not in flag]
    if not files:
        return parse_mig_flag(list(flags))
    if len(flags) > 1:
        raise LayoutError(f"read MIG layout: give one file ({files[0]}) or GPU=PROFILE,... flags, not both")
    if not Path(files[0]).is_file():
        raise LayoutError(f"read MIG layout {files[0]!r}: neither a file nor GPU=PROFILE,... (0=1g.10gb,3g.40gb)")
    return load_layout(Path(files[0]))
