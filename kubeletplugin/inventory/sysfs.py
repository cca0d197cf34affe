"""What the kernel knows of the GPUs' place: PCIe root, NUMA node, and which NVIDIA GPUs are on the bus at all.

The NUMA node is the kernel's (the CPUs nearest to the GPU), not NVML's, which on coherent parts names the GPU's own
memory. The root is injectable: tests and simulated machines have a tree of their own. Nothing here raises: a file that
can't be read means "not known".
"""

import re
from dataclasses import dataclass
from pathlib import Path

NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers: NVSwitches, audio and USB functions of a board have other classes."""

_PCIE_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus; ``driver`` is the bound kernel driver's name, empty when none is bound."""

    address: str
    driver: str

    @property
    def expected_in_nvml(self) -> bool:
        """False when another driver (vfio-pci, nouveau) holds it on purpose."""
        return self.driver in ("", "nvidia")


class Sysfs:
    """Reads ``<root>/bus/pci/devices``; ``root`` is ``/sys`` on a real node."""

    def __init__(self, root: Path) -> None:
        self._devices = root / "bus" / "pci" / "devices"

    def pcie_root(self, address: str) -> str | None:
        """``pci0000:15``: the host bridge under which the device sits."""
        try:
            path = (self._devices / address).resolve(strict=True)
        except (OSError, RuntimeError):
            return None
        return next((part for part in path.parts if _PCIE_ROOT.fullmatch(part)), None)

    def numa_node(self, address: str) -> int | None:
        """None where the kernel says -1: one node, or firmware that doesn't tell."""
        try:
            node = int(self._read(address, "numa_node"))
        except ValueError:
            return None
        return node if node >= 0 else None

    def nvidia_gpus(self) -> tuple[PciGpu, ...]:
        """Every NVIDIA GPU on the bus, by address; empty where there is no such tree."""
        try:
            addresses = sorted(entry.name for entry in self._devices.iterdir())
        except OSError:
            return ()
        return tuple(PciGpu(address, self._driver(address)) for address in addresses if self._is_gpu(address))

    def _is_gpu(self, address: str) -> bool:
        return self._read(address, "vendor") == NVIDIA_VENDOR and self._read(address, "class").startswith(
            _DISPLAY_CLASSES
        )

    def _driver(self, address: str) -> str:
        try:
            return (self._devices / address / "driver").readlink().name
        except OSError:
            return ""

    def _read(self, address: str, name: str) -> str:
        try:
            return (self._devices / address / name).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ""


def system_memory_bytes(proc_root: Path) -> int:
    """MemTotal of ``<proc_root>/meminfo``. Raises OSError or ValueError when it can't be read."""
    path = proc_root / "meminfo"
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key == "MemTotal":
            return int(value.split()[0]) * 1024
    raise ValueError(f"find MemTotal in {path}: no such line")
