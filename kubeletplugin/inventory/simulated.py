"""The host around a simulated node: its own sysfs tree, and the memory that its profile says it has."""

from pathlib import Path

from kubeletplugin.inventory.reading import Surroundings
from kubeletplugin.inventory.sysfs import Sysfs
from kubeletplugin.nvml.simulated.schema import MachineProfile


def simulated_surroundings(profile: MachineProfile, tree: Path) -> Surroundings:
    """``tree`` is where the node was materialised; it may not exist yet, then roots and NUMA nodes aren't known."""
    return Surroundings(Sysfs(tree / "sys"), lambda: _system_memory_bytes(profile))


def _system_memory_bytes(profile: MachineProfile) -> int:
    """Raises ValueError for a machine whose profile doesn't state it (it has GPU memory of its own)."""
    stated = [model.memory.system_mem_total_kib for model in profile.models.values()]
    kib = next((value for value in stated if value), None)
    if kib is None:
        raise ValueError(f"machine {profile.id} states no systemMemTotalKiB")
    return kib * 1024
