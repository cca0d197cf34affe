"""A machine made of files: driver root, device nodes (placeholders), /proc, /sys, and what writes its CDI files."""

import os
import struct
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.cdi.claims import ClaimSpecFiles
from kubeletplugin.cdi.driver import DriverSpecFile
from kubeletplugin.cdi.hostnodes import HostNodes
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import NotActiveError
from kubeletplugin.inventory.model import Device, DeviceKind, MigIdentity

VERSION = "580.105.08"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
226 drm
236 nvidia-caps
510 nvidia-uvm

Block devices:
  7 loop
510 not-a-char-device
"""


def elf_library(soname: str = "", *, bits: int = 64, machine: int = 62) -> bytes:
    """The smallest ELF file that says ``soname``: header, two program headers, string table, dynamic section."""
    strings = b"\0" + soname.encode() + b"\0"
    entries = [(5, 0), (14, 1)] if soname else [(5, 0)]
    header, program, dynamic_entry = (64, 56, "qQ") if bits == 64 else (52, 32, "iI")
    strings_at = header + 2 * program
    base = 0x1000
    entries[0] = (5, base + strings_at)
    dynamic = b"".join(struct.pack("<" + dynamic_entry, *entry) for entry in [*entries, (0, 0)])
    dynamic_at = strings_at + len(strings)
    total = dynamic_at + len(dynamic)
    ident = b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9)
    if bits == 64:
        head = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, header, 0, 0, header, program, 2, 0, 0, 0)
        load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, total, total, 0x1000)
        dyn = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, base + dynamic_at, 0, len(dynamic), len(dynamic), 8)
    else:
        head = ident + struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, header, 0, 0, header, program, 2, 0, 0, 0)
        load = struct.pack("<IIIIIIII", 1, 0, base, base, total, total, 5, 0x1000)
        dyn = struct.pack("<IIIIIIII", 2, dynamic_at, base + dynamic_at, 0, len(dynamic), len(dynamic), 6, 4)
    return head + load + dyn + strings + dynamic


class LostLease:
    """A fence of an instance that isn't active any more."""

    def held(self) -> AbstractContextManager[None]:
        raise NotActiveError("another instance holds the lease")


class CountingFence:
    """A fence that is held, and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def held(self) -> AbstractContextManager[None]:
        self.asked += 1
        return nullcontext()


@dataclass
class Machine:
    """``root`` is the driver root as the agent sees it; the host calls it ``on_host``."""

    folder: Path
    on_host: str = "/"
    fence: CountingFence = field(default_factory=CountingFence)

    def __post_init__(self) -> None:
        self.root = self.folder / "root"
        self.proc = self.folder / "proc"
        self.sys = self.folder / "sys"
        self.cdi = self.folder / "cdi"
        for folder in (self.root, self.proc, self.sys):
            folder.mkdir(parents=True)
        self.driver_root = DriverRoot(self.root, self.on_host)
        self.nodes = HostNodes(self.driver_root, proc=self.proc, sys=self.sys)
        self.writer = SpecWriter(self.cdi, self.fence, prefix="k8s.gpu.nvidia.com-", instance="pod-1", epoch=3)
        self.driver = DriverSpecFile(self.writer, self.nodes, self.driver_root)
        self.claims = ClaimSpecFiles(self.writer, self.nodes, self.driver)

    def put(self, path: str, content: bytes = b"x") -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        return target

    def link(self, path: str, target: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def library(self, name: str, soname: str = "", folder: str = LIBRARIES) -> None:
        self.put(f"{folder}/{name}", elf_library(soname))

    def age(self) -> None:
        """Times of files are as coarse as the kernel's tick: without this, a test's next change could go unseen."""
        for folder, _, files in os.walk(self.root):
            for name in ("", *files):
                os.utime(os.path.join(folder, name), (1e9, 1e9), follow_symlinks=False)

    def devices(self, *names: str) -> None:
        for name in names:
            self.put(f"/dev/{name}")

    def load_driver(self, gpus: int = 2, devices: str = PROC_DEVICES) -> None:
        (self.proc / "devices").write_text(devices)
        self.devices("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
        self.devices(*(f"nvidia{minor}" for minor in range(gpus)))

    def caps(self, path: str, minor: int, mode: int = 292) -> None:
        access = self.proc / "driver/nvidia/capabilities" / path / "access"
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")

    def drm(self, pci_bus_id: str, *names: str) -> None:
        for name in names:
            (self.sys / "bus/pci/devices" / pci_bus_id / "drm" / name).mkdir(parents=True)


def gpu(minor: int, name: str = "") -> Device:
    return Device(
        name=name or f"gpu-{minor}",
        kind=DeviceKind.GPU,
        uuid=f"GPU-{minor:08x}-0000-0000-0000-000000000000",
        gpu_uuid=f"GPU-{minor:08x}-0000-0000-0000-000000000000",
        minor=minor,
        index=minor,
        pci_bus_id=f"0000:{0x10 + minor:02x}:00.0",
        attributes={},
        capacity={},
    )


def mig(minor: int, gpu_instance: int, compute_instance: int, name: str) -> Device:
    parent = gpu(minor)
    return Device(
        name=name,
        kind=DeviceKind.MIG,
        uuid=f"MIG-{minor:08x}-0000-0000-0000-{gpu_instance:012x}",
        gpu_uuid=parent.uuid,
        minor=minor,
        index=minor,
        pci_bus_id=parent.pci_bus_id,
        attributes={},
        capacity={},
        mig=MigIdentity("1g.10gb", 19, 2, 1, gpu_instance, compute_instance),
    )
