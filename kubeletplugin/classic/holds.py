"""Devices that the classic route has handed out (extended resources such as ``nvidia.com/gpu``), and what that blocks.

A hold is there from the first sight in either of the kubelet's sources, and over when both have let go of it in two
looks in a row that count (see judge).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kubeletplugin.inventory.model import Device, Inventory

_LOOKS = 2


@dataclass(frozen=True, slots=True)
class ClassicHold:
    """``pods`` by UID, with ``namespace/name`` where known; a UID that isn't known is the name again."""

    resource: str
    pods: Mapping[str, str]


@dataclass(slots=True)
class _Kept:
    hold: ClassicHold
    missed: int = 0


class ClassicHolds:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    @property
    def current(self) -> Mapping[str, ClassicHold]:
        """By token."""
        return {token: kept.hold for token, kept in self._kept.items()}

    @property
    def doubtful(self) -> bool:
        """Whether one was missed in the last look: the next one should come soon."""
        return any(kept.missed for kept in self._kept.values())

    def see(self, seen: Mapping[str, ClassicHold]) -> None:
        """What this doesn't show may be there all the same."""
        for token, hold in seen.items():
            self._kept[token] = _Kept(hold)

    def look(self, seen: Mapping[str, ClassicHold]) -> None:
        """A look that counts: what it doesn't show is missed."""
        self.see(seen)
        for token in list(self._kept.keys() - seen.keys()):
            self._kept[token].missed += 1
            if self._kept[token].missed >= _LOOKS:
                del self._kept[token]


def blocked(inventory: Inventory, holds: Mapping[str, ClassicHold]) -> dict[str, ClassicHold]:
    """By device UUID: a GPU goes with all of its partitions, a partition with its whole GPU."""
    if not holds:
        return {}
    found = {}
    for device in inventory.devices:
        over = [device.uuid, device.gpu_uuid, f"nvidia{device.minor}"]
        if device.mig is None:
            over += [other.uuid for other in inventory.devices if other.gpu_uuid == device.uuid]
        hold = next((holds[token] for token in over if token in holds), None)
        if hold is not None:
            found[device.uuid] = hold
    return found


def withhold(inventory: Inventory, holds: Mapping[str, ClassicHold], blind: str = "") -> Inventory:
    """``inventory`` with a problem for each device that the classic route has, or may have: nobody new may be given it.
    ``blind`` says why it may have any."""
    taken = blocked(inventory, holds)
    if not taken and not blind:
        return inventory

    def judged(device: Device) -> Device:
        hold = taken.get(device.uuid)
        problem = device.problem or (_problem(hold) if hold else blind)
        return replace(device, problem=problem) if problem else device

    return replace(inventory, devices=tuple(map(judged, inventory.devices)))


def _problem(hold: ClassicHold) -> str:
    """For everybody, so without names of other namespaces."""
    uids = sorted(pod for pod in hold.pods if "/" not in pod)
    return f"another device plugin gave it out as {hold.resource} (to pod {', '.join(uids) or 'unknown'})"
