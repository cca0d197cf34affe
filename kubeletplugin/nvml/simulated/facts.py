"""What the simulator answers where a profile leaves it open. Choices, not measurements: no test may depend on them."""

from kubeletplugin.nvml.simulated.schema import MachineProfile


def module_id(profile: MachineProfile, slot: int) -> int:
    """The profile's, else 1 on a PCIe board (every captured one prints 1) and the lowest unused number on a board
    with NVLink."""
    known = profile.gpus[slot].module_id
    if known is not None:
        return known
    if profile.model_of(slot).nvlink.links == 0:
        return 1
    used = {gpu.module_id for gpu in profile.gpus}
    free = [number for number in range(1, 2 * len(profile.gpus) + 1) if number not in used]
    unknown = [gpu.index for gpu in profile.gpus if gpu.module_id is None]
    return free[unknown.index(slot)]


def nvml_version(profile: MachineProfile, driver_version: str) -> str:
    """CUDA's major number and the driver's version."""
    if driver_version == profile.driver.version:
        return profile.driver.nvml_version
    return f"{profile.driver.cuda_driver_version // 1000}.{driver_version}"


def link_target_bus_id(profile: MachineProfile, slot: int, link: int) -> str | None:
    """None for a switch that isn't on this host's PCI bus (NVLink 5), whose answer nobody has published."""
    targets = profile.gpus[slot].nvlink.link_targets
    if link >= len(targets):
        return None
    for switch in profile.nvlink_fabric.nvswitches:
        if switch.name == targets[link]:
            return switch.pci_bus_id
    for gpu in profile.gpus:
        if f"gpu{gpu.index}" == targets[link]:
            return gpu.pci_bus_id
    return None
