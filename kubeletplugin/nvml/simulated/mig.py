"""MIG on one GPU's state: which instances fit, what their ids and UUIDs are, and which NVML code a refusal has.

Pure functions over ``GpuState`` and the part's ``MigSpec``; the caller holds the state's lock. What limits a GPU is
the free range of memory slices, the count of a profile alone, and the engines of the whole part: that is why a +me
instance is the only one of its GPU, since it takes the one JPEG and OFA engine. Placement order without an explicit
placement, instance ids and profile ids come from the profile.
"""

import uuid
from collections.abc import Callable, Iterator

from kubeletplugin.nvml.api import Placement
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated.calls import c_name
from kubeletplugin.nvml.simulated.schema import (
    ComputeProfile,
    GpuModel,
    InstanceProfile,
    InstanceProfileEntry,
    MigSpec,
)
from kubeletplugin.nvml.simulated.state import ComputeInstanceState, GpuInstanceState, GpuState

GPU_INSTANCE_PROFILE_COUNT = 0x12
COMPUTE_INSTANCE_PROFILE_COUNT = 9

_ENGINES: tuple[Callable[[InstanceProfile], int | None], ...] = (
    lambda profile: profile.ce,
    lambda profile: profile.dec,
    lambda profile: profile.enc,
    lambda profile: profile.jpeg,
    lambda profile: profile.ofa,
    lambda profile: profile.sm,
)


def require_enabled(gpu: GpuState, method: str) -> None:
    if not gpu.mig_enabled:
        raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))


def entry_by_enum(mig: MigSpec, profile_enum: int, method: str) -> InstanceProfileEntry:
    if not 0 <= profile_enum < GPU_INSTANCE_PROFILE_COUNT:
        raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
    for entry in mig.gpu_instance_profiles:
        if entry.profile.enum == profile_enum:
            return entry
    raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))


def entry_by_id(mig: MigSpec, profile_id: int, method: str) -> InstanceProfileEntry:
    entry = mig.entry(profile_id)
    if entry is None:
        raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
    return entry


def possible_placements(entry: InstanceProfileEntry) -> tuple[Placement, ...]:
    return tuple(Placement(start, entry.profile.placement_size) for start in entry.profile.placement_starts)


def free_starts(gpu: GpuState, mig: MigSpec, entry: InstanceProfileEntry) -> list[int]:
    """Where one more of the profile fits now, in the order in which the driver would choose."""
    if not _engines_left(gpu, mig, entry):
        return []
    size = entry.profile.placement_size
    order = mig.default_placement_order.get(size, ())
    starts = sorted(
        entry.profile.placement_starts,
        key=lambda start: (order.index(start) if start in order else len(order), start),
    )
    return [start for start in starts if not _overlaps(gpu, start, size)]


def remaining_capacity(gpu: GpuState, mig: MigSpec, entry: InstanceProfileEntry) -> int:
    """How many more of the profile could be created one after the other."""
    trial = gpu.model_copy(update={"gpu_instances": list(gpu.gpu_instances)})
    made = 0
    while starts := free_starts(trial, mig, entry):
        trial.gpu_instances.append(_new_gpu_instance(trial, entry, starts[0]))
        made += 1
    return made


def create_gpu_instance(gpu: GpuState, mig: MigSpec, profile_id: int, placement: Placement | None) -> GpuInstanceState:
    method = "create_gpu_instance"
    require_enabled(gpu, method)
    entry = entry_by_id(mig, profile_id, method)
    if any(process.gpu_instance is None for process in gpu.processes):
        raise NvmlError(NvmlCode.IN_USE, c_name(method))
    if placement is not None and placement not in possible_placements(entry):
        raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
    starts = free_starts(gpu, mig, entry)
    if placement is not None:
        starts = [start for start in starts if start == placement.start]
    if not starts:
        raise NvmlError(NvmlCode.INSUFFICIENT_RESOURCES, c_name(method))
    instance = _new_gpu_instance(gpu, entry, starts[0])
    gpu.gpu_instances.append(instance)
    gpu.gpu_instances.sort(key=lambda other: other.start)
    return instance


def destroy_gpu_instance(gpu: GpuState, instance_id: int) -> None:
    method = "destroy_gpu_instance"
    instance = find_gpu_instance(gpu, instance_id, method)
    if instance.compute_instances or any(process.gpu_instance == instance_id for process in gpu.processes):
        raise NvmlError(NvmlCode.IN_USE, c_name(method))
    gpu.gpu_instances.remove(instance)


def find_gpu_instance(gpu: GpuState, instance_id: int, method: str) -> GpuInstanceState:
    instance = gpu.gpu_instance(instance_id)
    if instance is None:
        raise NvmlError(NvmlCode.NOT_FOUND, c_name(method))
    return instance


def compute_profile(entry: InstanceProfileEntry, profile_id: int, method: str) -> ComputeProfile:
    """By id, which create takes. INVALID_ARGUMENT for one that this GPU instance doesn't offer."""
    for profile in entry.compute_instance_profiles:
        if profile.id == profile_id:
            return profile
    raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))


def compute_profile_by_enum(entry: InstanceProfileEntry, profile_enum: int, method: str) -> ComputeProfile:
    if not 0 <= profile_enum < COMPUTE_INSTANCE_PROFILE_COUNT:
        raise NvmlError(NvmlCode.INVALID_ARGUMENT, c_name(method))
    for profile in entry.compute_instance_profiles:
        if profile.enum == profile_enum:
            return profile
    raise NvmlError(NvmlCode.NOT_SUPPORTED, c_name(method))


def create_compute_instance(gpu: GpuState, mig: MigSpec, instance_id: int, profile_id: int) -> ComputeInstanceState:
    method = "create_compute_instance"
    parent = find_gpu_instance(gpu, instance_id, method)
    entry = entry_by_id(mig, parent.profile_id, method)
    profile = compute_profile(entry, profile_id, method)
    start = _free_compute_start(parent, profile.slices, entry.profile.slices)
    same = sum(child.profile_id == profile_id for child in parent.compute_instances)
    if start is None or same >= profile.max:
        raise NvmlError(NvmlCode.INSUFFICIENT_RESOURCES, c_name(method))
    child_id = _lowest_free(child.id for child in parent.compute_instances)
    child = ComputeInstanceState(
        id=child_id,
        profile_id=profile_id,
        start=start,
        size=profile.slices,
        mig_index=_lowest_free(other.mig_index for _, other in gpu.compute_instances()),
        uuid=mig_uuid(gpu.uuid, instance_id, child_id),
    )
    parent.compute_instances.append(child)
    parent.compute_instances.sort(key=lambda other: other.id)
    return child


def destroy_compute_instance(gpu: GpuState, instance_id: int, child_id: int) -> None:
    method = "destroy_compute_instance"
    parent = find_gpu_instance(gpu, instance_id, method)
    child = next((entry for entry in parent.compute_instances if entry.id == child_id), None)
    if child is None:
        raise NvmlError(NvmlCode.NOT_FOUND, c_name(method))
    if any((p.gpu_instance, p.compute_instance) == (instance_id, child_id) for p in gpu.processes):
        raise NvmlError(NvmlCode.IN_USE, c_name(method))
    parent.compute_instances.remove(child)


def set_mode(gpu: GpuState, model: GpuModel, enabled: bool) -> NvmlCode:
    """The activation status. A GPU that is busy, or that needs a reset which a virtual machine can't do, keeps the
    new mode pending until ``reset`` or a reboot."""
    gpu.mig_pending = enabled
    if enabled == gpu.mig_enabled:
        return NvmlCode.SUCCESS
    if gpu.processes or gpu.gpu_instances:
        return NvmlCode.IN_USE
    passed_through = model.modes.virtualization.nvml != 0
    if model.mig.mode_toggle_needs_gpu_reset and passed_through:
        return NvmlCode.RESET_REQUIRED
    activate_pending_mode(gpu)
    return NvmlCode.SUCCESS


def activate_pending_mode(gpu: GpuState) -> None:
    if gpu.mig_enabled == gpu.mig_pending:
        return
    gpu.mig_enabled = gpu.mig_pending
    if gpu.minor_after_mode_change is not None:
        gpu.minor, gpu.minor_after_mode_change = gpu.minor_after_mode_change, None


def mig_uuid(gpu_uuid: str, instance_id: int, child_id: int) -> str:
    """The same for the same place on the same GPU, as on hardware, however often it is made anew."""
    parent = uuid.UUID(gpu_uuid.removeprefix("GPU-"))
    return f"MIG-{uuid.uuid5(parent, f'{instance_id}/{child_id}')}"


def _new_gpu_instance(gpu: GpuState, entry: InstanceProfileEntry, start: int) -> GpuInstanceState:
    if entry.gpu_instance_ids is not None:
        instance_id = entry.gpu_instance_ids[entry.profile.placement_starts.index(start)]
    else:
        # The numbering of this part isn't known; 0 is left to the profile that takes the whole GPU.
        instance_id = _lowest_free((other.id for other in gpu.gpu_instances), first=1)
    return GpuInstanceState(id=instance_id, profile_id=entry.profile.id, start=start, size=entry.profile.placement_size)


def _overlaps(gpu: GpuState, start: int, size: int) -> bool:
    return any(start < other.end and other.start < start + size for other in gpu.gpu_instances)


def _engines_left(gpu: GpuState, mig: MigSpec, entry: InstanceProfileEntry) -> bool:
    held = [found.profile for other in gpu.gpu_instances if (found := mig.entry(other.profile_id)) is not None]
    if sum(profile.id == entry.profile.id for profile in held) >= entry.profile.max:
        return False
    if mig.extra_rules is not None and not _pair_allowed(held, entry.profile):
        return False
    for count in _ENGINES:
        total = max(count(other.profile) or 0 for other in mig.gpu_instance_profiles)
        if sum(count(profile) or 0 for profile in [*held, entry.profile]) > total:
            return False
    return True


def _pair_allowed(held: list[InstanceProfile], wanted: InstanceProfile) -> bool:
    """Jetson Thor's rule, the only one a profile states: at most two instances, one compute and one +gfx."""
    if len(held) >= 2:
        return False
    return all(("gfx" in other.attrs) != ("gfx" in wanted.attrs) for other in held)


def _free_compute_start(parent: GpuInstanceState, size: int, slices: int) -> int | None:
    for start in range(slices - size + 1):
        if all(start + size <= child.start or child.start + child.size <= start for child in parent.compute_instances):
            return start
    return None


def _lowest_free(taken: Iterator[int], first: int = 0) -> int:
    used = set(taken)
    number = first
    while number in used:
        number += 1
    return number
