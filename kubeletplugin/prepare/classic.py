"""Devices that the classic route has handed out (extended resources such as ``nvidia.com/gpu``), as the kubelet tells.

Nothing says when such a hold is over, and neither source is enough alone: the device checkpoint keeps pods that have
ended until the next Allocate or ListAndWatch message, pod-resources leaves out ordinary init containers and is empty
for a moment after a kubelet's start. So a hold is there from the first sight in either, and over when it is absent from
both in two looks in a row, the list being plausible. An entry of the checkpoint doesn't count for a pod that has ended
for sure, or a node that leaves its device plugin would never get the last GPUs back.

Devices are known by tokens: a UUID, or ``nvidia<minor>`` for plugins that name them so.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kubeletplugin.inventory.model import Inventory

VENDOR = "nvidia.com/"
_LOOKS = 2
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NODE = re.compile(r"(?:^|/)(nvidia\d+)(?=/|$)")


def tokens(ids: Iterable[str], more: Iterable[str] = ()) -> frozenset[str]:
    """The devices that a plugin's ids mean, replicas (``UUID::0``) included; else those that ``more`` texts tell of:
    what Allocate answered. A device node comes last, since a partition's container gets its whole GPU's."""
    texts = (tuple(ids), tuple(more))
    for pattern in (_UUID, _NODE):
        for part in texts:
            if found := frozenset(match for text in part for match in pattern.findall(text)):
                return found
    return frozenset()


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

    def update(self, seen: Mapping[str, ClassicHold], *, trusted: bool) -> None:
        """A look. Without ``trusted`` what it doesn't show may be there all the same."""
        for token, hold in seen.items():
            self._kept[token] = _Kept(hold)
        if not trusted:
            return
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


def withhold(inventory: Inventory, holds: Mapping[str, ClassicHold]) -> Inventory:
    """``inventory`` with a problem for each device that the classic route has: nobody new may be given it."""
    taken = blocked(inventory, holds)
    if not taken:
        return inventory
    devices = tuple(
        replace(device, problem=device.problem or _problem(taken[device.uuid])) if device.uuid in taken else device
        for device in inventory.devices
    )
    return replace(inventory, devices=devices)


def _problem(hold: ClassicHold) -> str:
    """For everybody, so without names of other namespaces."""
    uids = sorted(pod for pod in hold.pods if "/" not in pod)
    return f"another device plugin gave it out as {hold.resource} (to pod {', '.join(uids) or 'unknown'})"
