"""What is known of a device's health, from one look at the node.

Only what was seen counts, for now: *Healthy* means that NVML answered for the device's GPU in this look, *Unknown*
that it didn't, *Unhealthy* that the device as its holder got it is gone (the GPU is lost, the partition was destroyed,
MIG mode was turned on). A device that is merely withheld from new claims isn't unhealthy for that.
"""

from dataclasses import dataclass
from enum import StrEnum

from kubeletplugin.inventory.model import Device, Inventory


class Health(StrEnum):
    """As the kubelet's health stream spells it."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``message`` is for the pod's status: why, and what follows; empty when healthy."""

    health: Health
    message: str = ""


NO_ANSWER = "NVML gave no answer for this GPU in the last look"
LOST = "the GPU is lost: reset it or reboot the node"


def judge(device: Device, inventory: Inventory) -> Verdict:
    if inventory.lost & {device.uuid, device.gpu_uuid}:
        return Verdict(Health.UNHEALTHY, device.problem or LOST)
    if device.gpu_uuid not in inventory.answered:
        return Verdict(Health.UNKNOWN, device.problem or NO_ANSWER)
    if device.problem:
        return Verdict(Health.UNHEALTHY, device.problem)
    return Verdict(Health.HEALTHY)
