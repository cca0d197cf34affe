"""The kernel's side of a simulated host: sysfs, procfs and device nodes, as paths relative to the host's root."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from kubeletplugin.nvml.simulated.schema import Gpu, GpuModel, MachineProfile
from kubeletplugin.nvml.simulated.state import GpuState, NodeState

GPU_INSTANCES = 15
COMPUTE_INSTANCES = 8
_GEFORCE = 5

_CAPABILITY_MODE = 0o444


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int = 0o644

    @property
    def signature(self) -> str:
        return f"{self.mode:o} {hash_of(self.content)}"


@dataclass(frozen=True, slots=True)
class Link:
    target: str

    @property
    def signature(self) -> str:
        return f"-> {self.target}"


@dataclass(frozen=True, slots=True)
class Node:
    """A character device; ``boot_id`` since /dev is empty after a boot and made anew."""

    device: int
    mode: int
    boot_id: str

    @property
    def signature(self) -> str:
        return f"c{self.mode:o} {self.device} {self.boot_id}"


Entry = File | Link | Node


def hash_of(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def text(*lines: object) -> File:
    return File("".join(f"{line}\n" for line in lines).encode())


def sysfs_address(pci_bus_id: str) -> str:
    """``0000:1b:00.0`` for NVML's ``00000000:1B:00.0``."""
    return pci_bus_id[4:].lower()


def capability_minor(gpu_minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """The driver's fixed numbering: 1 and 2 are config and monitor, then each GPU instance with its 8 compute
    instances takes 9 numbers, and each GPU 15 GPU instances."""
    first = 3 + (gpu_minor * GPU_INSTANCES + gpu_instance) * (1 + COMPUTE_INSTANCES)
    return first if compute_instance is None else first + 1 + compute_instance


def host_files(profile: MachineProfile, state: NodeState) -> dict[str, Entry]:
    entries: dict[str, Entry] = {"proc/sys/kernel/random/boot_id": text(state.boot_id)}
    entries["proc/devices"] = _proc_devices(state)
    entries.update(_sysfs(profile, state))
    if state.driver.loaded:
        entries.update(_proc_driver(profile, state))
        entries.update(_device_nodes(state))
    return entries


def _sysfs(profile: MachineProfile, state: NodeState) -> Iterator[tuple[str, Entry]]:
    for node in profile.numa_nodes:
        yield f"sys/devices/system/node/node{node.id}/cpulist", text(node.cpus)
    if state.driver.loaded:
        yield "sys/module/nvidia/version", text(state.driver.version)
        yield "sys/module/nvidia/initstate", text("live")
    for spec, port in _root_ports(profile):
        gpu, model = state.gpus[spec.index], profile.models[spec.model]
        if not gpu.present:
            continue
        address = sysfs_address(spec.pci_bus_id)
        folder = "/".join(filter(None, ("devices", spec.pcie_root, port, address)))
        for name, value in _pci_values(spec, model).items():
            yield f"sys/{folder}/{name}", text(value)
        yield f"sys/bus/pci/devices/{address}", Link(f"../../../{folder}")
        if state.driver.loaded:
            up = "../" * folder.count("/")
            yield f"sys/{folder}/driver", Link(f"{up}../bus/pci/drivers/nvidia")
            yield f"sys/bus/pci/drivers/nvidia/{address}", Link(f"../../../../{folder}")


def _pci_values(spec: Gpu, model: GpuModel) -> dict[str, str]:
    display = model.brand.nvml == _GEFORCE or any("0300 (VGA)" in quirk for quirk in model.quirks)
    subsystem = model.pci.subsystem_id or 0
    return {
        "vendor": f"0x{model.pci.device_id & 0xFFFF:04x}",
        "device": f"0x{model.pci.device_id >> 16:04x}",
        "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}",
        "subsystem_device": f"0x{subsystem >> 16:04x}",
        "class": "0x030000" if display else "0x030200",
        "numa_node": str(spec.sysfs_numa_node),
        "local_cpulist": spec.cpu_affinity,
    }


def _root_ports(profile: MachineProfile) -> Iterator[tuple[Gpu, str]]:
    """Each GPU with the root port that it is behind: one per switch, or its own; none on the root's own bus."""
    ports: dict[str, list[str]] = {}
    for gpu in profile.gpus:
        address = sysfs_address(gpu.pci_bus_id)
        domain, bus = gpu.pcie_root.removeprefix("pci").split(":")
        if address.startswith(f"{domain}:{bus}:"):
            yield gpu, ""
            continue
        behind = ports.setdefault(gpu.pcie_root, [])
        branch = gpu.pcie_switch or address
        if branch not in behind:
            behind.append(branch)
        yield gpu, f"{domain}:{bus}:{behind.index(branch) + 1:02x}.0"


def _proc_devices(state: NodeState) -> File:
    majors = {
        "nvidia-frontend": state.majors.frontend,
        "nvidia-uvm": state.majors.uvm,
        "nvidia-caps": state.majors.caps,
    }
    ours = [(number, name) for name, number in majors.items() if state.driver.loaded]
    lines = [f"{number:3} {name}" for number, name in sorted([(1, "mem"), (4, "tty"), (10, "misc"), *ours])]
    return text("Character devices:", *lines, "", "Block devices:", "259 blkext")


def _proc_driver(profile: MachineProfile, state: NodeState) -> Iterator[tuple[str, Entry]]:
    driver = "proc/driver/nvidia"
    kind = "Open Kernel Module" if profile.driver.kernel_modules == "open" else "Kernel Module"
    yield (
        f"{driver}/version",
        text(f"NVRM version: NVIDIA UNIX {kind} for {profile.machine.cpu_arch}  {state.driver.version}  Release Build"),
    )
    yield (
        f"{driver}/params",
        text("ModifyDeviceFiles: 1", "DeviceFileUID: 0", "DeviceFileGID: 0", "DeviceFileMode: 438"),
    )
    yield f"{driver}/capabilities/mig/config", _capability(1, 0o400)
    yield f"{driver}/capabilities/mig/monitor", _capability(2)
    yield "proc/driver/nvidia-caps/mig-minors", _mig_minors(state)
    for gpu in state.gpus:
        if not gpu.present:
            continue
        model = profile.model_of(gpu.slot)
        yield (
            f"{driver}/gpus/{sysfs_address(gpu.pci_bus_id)}/information",
            text(
                f"Model: \t\t {model.name}",
                f"GPU UUID: \t {gpu.uuid}",
                f"Bus Location: \t {sysfs_address(gpu.pci_bus_id)}",
                f"Device Minor: \t {gpu.minor}",
            ),
        )
        yield from _mig_capabilities(f"{driver}/capabilities/gpu{gpu.minor}/mig", gpu)


def _mig_capabilities(folder: str, gpu: GpuState) -> Iterator[tuple[str, Entry]]:
    for parent in gpu.gpu_instances:
        yield f"{folder}/gi{parent.id}/access", _capability(capability_minor(gpu.minor, parent.id))
        for child in parent.compute_instances:
            minor = capability_minor(gpu.minor, parent.id, child.id)
            yield f"{folder}/gi{parent.id}/ci{child.id}/access", _capability(minor)


def _capability(minor: int, mode: int = _CAPABILITY_MODE) -> File:
    return text(f"DeviceFileMinor: {minor}", f"DeviceFileMode: {mode}", "DeviceFileModify: 1")


def _mig_minors(state: NodeState) -> File:
    lines = ["config 1", "monitor 2"]
    for gpu_minor in sorted(gpu.minor for gpu in state.gpus):
        for parent in range(GPU_INSTANCES):
            lines.append(f"gpu{gpu_minor}/gi{parent}/access {capability_minor(gpu_minor, parent)}")
            lines.extend(
                f"gpu{gpu_minor}/gi{parent}/ci{child}/access {capability_minor(gpu_minor, parent, child)}"
                for child in range(COMPUTE_INSTANCES)
            )
    return text(*lines)


def _device_nodes(state: NodeState) -> Iterator[tuple[str, Entry]]:
    frontend, uvm, caps = state.majors.frontend, state.majors.uvm, state.majors.caps

    def node(major: int, minor: int, mode: int = 0o666) -> Node:
        return Node(os.makedev(major, minor), mode, state.boot_id)

    yield "dev/nvidiactl", node(frontend, 255)
    yield "dev/nvidia-modeset", node(frontend, 254)
    yield "dev/nvidia-uvm", node(uvm, 0)
    yield "dev/nvidia-uvm-tools", node(uvm, 1)
    yield "dev/nvidia-caps/nvidia-cap1", node(caps, 1, 0o400)
    yield "dev/nvidia-caps/nvidia-cap2", node(caps, 2, _CAPABILITY_MODE)
    for gpu in state.gpus:
        yield f"dev/nvidia{gpu.minor}", node(frontend, gpu.minor)
        for parent in gpu.gpu_instances:
            for child in [None, *(child.id for child in parent.compute_instances)]:
                minor = capability_minor(gpu.minor, parent.id, child)
                yield f"dev/nvidia-caps/nvidia-cap{minor}", node(caps, minor, _CAPABILITY_MODE)
