"""Existing MIG partitions of one GPU.

A partition is a GPU instance whose compute instance fills it. GPU instances without such a compute instance (none
made yet, or cut further) aren't offered and are remarked on. The compute instance is recognised by its slice count,
never by a profile number: the number of the full one differs between parts (7 for the double-memory single slice on
Hopper and later), and asking for a fixed one loses those partitions.

Profile names follow go-nvlib's arithmetic, so that selectors and device names are the peer's; NVML's own name is taken
where there is no memory to compute with (unified memory).
"""

import re

from kubeletplugin.inventory.facts import PartitionFacts
from kubeletplugin.inventory.getters import probe_enum
from kubeletplugin.nvml.api import ComputeInstance, DeviceHandle, GpuInstance, GpuInstanceProfile, Nvml

GPU_INSTANCE_PROFILE_ENUMS = range(0x12)
COMPUTE_INSTANCE_PROFILE_ENUMS = range(9)

_SUFFIX_BY_ENUM = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}

_NVML_NAME = re.compile(r"\d+g\.\d+gb(?:[+-][a-z.]+)?", re.ASCII)


def read_partitions(
    nvml: Nvml, device: DeviceHandle, total_bytes: int, remarks: list[str]
) -> tuple[PartitionFacts, ...]:
    """By placement. ``total_bytes`` is the GPU's own memory, 0 where it has none."""
    found: dict[int, PartitionFacts] = {}
    for enum in GPU_INSTANCE_PROFILE_ENUMS:
        profile = probe_enum(nvml.gpu_instance_profile, device, enum)
        if profile is None:
            continue
        name = profile_name(enum, profile, total_bytes)
        for instance in nvml.gpu_instances(device, profile.id):
            compute = _filling_compute_instance(nvml, instance, profile)
            if compute is None:
                remarks.append(
                    f"GPU instance {instance.id} ({name}) isn't offered: it has no compute instance of its full size"
                )
            else:
                found.setdefault(instance.id, _facts(name, profile, instance, compute))
    return tuple(sorted(found.values(), key=lambda part: (part.placement_start, part.gpu_instance_id)))


def _filling_compute_instance(
    nvml: Nvml, instance: GpuInstance, gpu_profile: GpuInstanceProfile
) -> ComputeInstance | None:
    for enum in COMPUTE_INSTANCE_PROFILE_ENUMS:
        profile = probe_enum(nvml.compute_instance_profile, instance.handle, enum)
        if profile is None or profile.slice_count != gpu_profile.slice_count:
            continue
        full = nvml.compute_instances(instance.handle, profile.id)
        if full:
            return full[0]
    return None


def _facts(name: str, profile: GpuInstanceProfile, instance: GpuInstance, compute: ComputeInstance) -> PartitionFacts:
    return PartitionFacts(
        uuid=compute.mig_uuid,
        profile=name,
        profile_id=profile.id,
        placement_start=instance.placement.start,
        placement_size=instance.placement.size,
        gpu_instance_id=instance.id,
        compute_instance_id=compute.id,
        memory_mib=profile.memory_mib,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
    )


def profile_name(enum: int, profile: GpuInstanceProfile, total_bytes: int) -> str:
    """``1g.10gb+me``. The size is the memory in eighths of the GPU's, rounded up, of the GPU's whole GiB."""
    suffix = _SUFFIX_BY_ENUM.get(enum, "")
    if total_bytes <= 0 or profile.memory_mib <= 0:
        match = _NVML_NAME.search(profile.name)
        return match[0] if match else f"{profile.slice_count}g.0gb{suffix}"
    eighths = -(-8 * profile.memory_mib * 2**20 // total_bytes)
    total_gib = -(-total_bytes // 2**30)
    return f"{profile.slice_count}g.{(eighths * total_gib + 4) // 8}gb{suffix}"
