"""What a look means, given what was there before.

A device that someone still refers to stays in the inventory, with its last known facts and the reason why nobody new
may have it, so that a repeated Prepare, an Unprepare, the health stream and `gpuclaim status` can still say what the
name means. A device that nobody refers to leaves with its GPU. A GPU that NVML listed before and doesn't list any more
is lost: reported until it comes back, or the agent restarts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kubeletplugin.inventory import naming
from kubeletplugin.inventory.model import Device, Inventory, WithheldGpu

GONE = "NVML doesn't list this GPU any more: it was removed or fell off the bus"
PARTITION_GONE = "this partition doesn't exist any more: the MIG layout was changed while it was in use"
MIG_TURNED_ON = "MIG mode was turned on while the whole GPU was in use"


def with_gone(look: Inventory, listed: Iterable[str], known: Mapping[str, WithheldGpu]) -> Inventory:
    """``look`` with the GPUs in ``known`` (by UUID, as they were last seen) that aren't in ``listed`` any more."""
    gone = [replace(known[uuid], reason=GONE, excluded=False) for uuid in known.keys() - frozenset(listed)]
    if not gone:
        return look
    withheld = sorted((*look.withheld, *gone), key=lambda gpu: (gpu.index, gpu.uuid))
    return replace(look, withheld=tuple(withheld), lost=look.lost | {gpu.uuid for gpu in gone})


def with_held(look: Inventory, before: Inventory | None, held: Mapping[str, str]) -> Inventory:
    """``look`` (bound names) with the devices of ``before`` that it lacks and that are referred to. ``held`` is what
    is referred to, name to UUID; ``before`` may still carry other names for the same devices (at a take-over)."""
    present = {device.uuid for device in look.devices}
    reasons = {gpu.uuid: gpu.reason for gpu in look.withheld if gpu.uuid}
    lost_before = before.lost if before else frozenset()
    kept = [
        replace(device, problem=_problem(device, look, reasons, lost_before))
        for device in _referred_to(before, held)
        if device.uuid not in present
    ]
    if not kept:
        return look
    return replace(
        look,
        devices=tuple(sorted((*look.devices, *kept), key=lambda device: device.place)),
        lost=look.lost | {device.uuid for device in kept if device.problem == PARTITION_GONE},
    )


def _referred_to(before: Inventory | None, held: Mapping[str, str]) -> list[Device]:
    """Under the names by which they are referred to."""
    devices = before.devices if before else ()
    named = ((device, naming.held_name(device, held)) for device in devices)
    return [replace(device, name=name) for device, name in named if name is not None]


def _problem(device: Device, look: Inventory, reasons: Mapping[str, str], lost_before: frozenset[str]) -> str:
    if device.mig and device.uuid in lost_before:
        return PARTITION_GONE
    if device.gpu_uuid in look.answered:
        return PARTITION_GONE if device.mig else MIG_TURNED_ON
    return reasons.get(device.gpu_uuid, GONE)


def withdrawn(before: Inventory, held: Mapping[str, str], known: Mapping[str, WithheldGpu], reason: str) -> Inventory:
    """Everything of ``before`` taken back because the driver is gone; what is referred to stays, with ``reason``. What
    was lost before stays lost."""
    kept = tuple(
        device if before.lost & {device.uuid, device.gpu_uuid} else replace(device, problem=reason)
        for device in _referred_to(before, held)
    )
    excluded = {gpu.uuid: gpu for gpu in before.withheld if gpu.excluded}
    withheld = [excluded.get(uuid, replace(gpu, reason=reason)) for uuid, gpu in known.items()]
    withheld.sort(key=lambda gpu: (gpu.index, gpu.uuid))
    return Inventory(before.driver_version, kept, tuple(withheld), lost=before.lost)
