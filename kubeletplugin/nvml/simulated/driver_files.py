"""The driver's side of a simulated host: what a driver installer puts below the driver root.

Libraries are real, if empty, ELF shared objects with their SONAME, so that a loader's cache, a check of class and
machine, and ``ldconfig`` in a container treat them as they treat the driver's own.
"""

import struct

from kubeletplugin.nvml.simulated.host_files import Entry, File, Link
from kubeletplugin.nvml.simulated.schema import MachineProfile

_LIBRARIES = (
    "libEGL_nvidia.so.0",
    "libGLESv1_CM_nvidia.so.1",
    "libGLESv2_nvidia.so.2",
    "libGLX_nvidia.so.0",
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-fbc.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ngx.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvoptix.so.1",
)
"""By SONAME; the file itself carries the driver's version."""

_VERSIONED_LIBRARIES = (
    "libnvidia-eglcore",
    "libnvidia-glcore",
    "libnvidia-glsi",
    "libnvidia-glvkspirv",
    "libnvidia-gpucomp",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-rtcore",
    "libnvidia-tls",
    "libnvidia-vulkan-producer",
    "libnvidia-wayland-client",
)
"""Libraries whose SONAME is the file's own name, so that they have no link."""

_BINARIES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-smi",
)

_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")

_ELF_MACHINE = {"x86_64": 62, "aarch64": 183}


def driver_files(profile: MachineProfile, version: str) -> dict[str, Entry]:
    machine = profile.machine.cpu_arch
    folder = f"usr/lib/{machine}-linux-gnu"
    entries: dict[str, Entry] = {}
    for soname in _LIBRARIES:
        stem = soname[: soname.index(".so.") + 3]
        entries[f"{folder}/{stem}.{version}"] = _library(soname, machine)
        entries[f"{folder}/{soname}"] = Link(f"{stem}.{version}")
    for stem in _VERSIONED_LIBRARIES:
        name = f"{stem}.so.{version}"
        entries[f"{folder}/{name}"] = _library(name, machine)
    entries[f"{folder}/libcuda.so"] = Link("libcuda.so.1")
    entries[f"{folder}/gbm/nvidia-drm_gbm.so"] = Link("../libnvidia-allocator.so.1")
    entries[f"{folder}/vdpau/libvdpau_nvidia.so.{version}"] = _library("libvdpau_nvidia.so.1", machine)
    entries[f"{folder}/vdpau/libvdpau_nvidia.so.1"] = Link(f"libvdpau_nvidia.so.{version}")
    for name in _BINARIES:
        entries[f"usr/bin/{name}"] = File(f"#!/bin/sh\necho {name} {version} '(simulated)'\n".encode(), 0o755)
    for name in _FIRMWARE:
        entries[f"lib/firmware/nvidia/{version}/{name}"] = File(name.encode())
    return entries


def _library(soname: str, machine: str) -> File:
    return File(shared_object(soname, _ELF_MACHINE[machine]))


def shared_object(soname: str, machine: int) -> bytes:
    """A little-endian ELF64 shared object without code: a PT_LOAD, a PT_DYNAMIC that names it, a string table and an
    empty symbol table."""
    header, program_header = 64, 56
    dynamic_at = header + 2 * program_header
    strings = b"\0" + soname.encode() + b"\0"
    symbols_at = dynamic_at + 7 * 16
    strings_at = symbols_at + 24
    size = strings_at + len(strings)
    tags = ((14, 1), (5, strings_at), (10, len(strings)), (6, symbols_at), (11, 24), (0, 0), (0, 0))
    dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in tags)
    ident = b"\x7fELF" + bytes((2, 1, 1, 0)) + bytes(8)
    return b"".join(
        (
            struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, header, 0, 0, header, program_header, 2, 0, 0, 0),
            struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, size, size, 0x1000),
            struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
            dynamic,
            bytes(24),
            strings,
        )
    )
