"""Device names, as the peer's, bound to UUIDs.

A name is only a label: what it means is looked up in the bindings, never parsed, since the minor number in it may
belong to another GPU after a reboot, a driver reload or a change of MIG mode. One rule keeps claims right: while
anything refers to a name, it stays with its UUID, present or not. A newcomer that would be called the same gets four
hex digits of its own UUID appended until then. Without references names follow the minor numbers again, so that what
people see matches ``/dev/nvidia<minor>``.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubeletplugin.inventory.model import Device

_HEX_STEP = 4
_NOT_IN_LABEL = re.compile(r"[^a-z0-9-]+")


def gpu_name(minor: int) -> str:
    return f"gpu-{minor}"


def mig_name(parent_minor: int, profile: str, profile_id: int, placement_start: int) -> str:
    """``gpu-0-mig-1g24gb-me-20-3``: dots go, any other character that a DNS label can't hold becomes a dash."""
    text = _NOT_IN_LABEL.sub("-", profile.lower().replace(".", "")).strip("-")
    return f"gpu-{parent_minor}-mig-{text}-{profile_id}-{placement_start}"


@dataclass(frozen=True, slots=True)
class Names:
    """``names`` is device UUID to name, for the devices given; ``bindings`` is name to UUID, all that are in force."""

    names: Mapping[str, str]
    bindings: Mapping[str, str]


def assign(devices: Iterable[Device], bindings: Mapping[str, str], referenced: frozenset[str]) -> Names:
    """Names for ``devices`` (which carry their plain ones, in order of precedence, each UUID once).

    ``bindings`` are those in force so far, name to UUID; ``referenced`` the names that must not move.
    """
    held = {name: uuid for name, uuid in bindings.items() if name in referenced}
    names: dict[str, str] = {}
    taken = dict(held)
    newcomers: list[Device] = []
    for device in devices:
        name = held_name(device, held)
        if name is None:
            newcomers.append(device)
        else:
            names[device.uuid] = name
    for device in newcomers:
        name = next(candidate for candidate in _candidates(device) if candidate not in taken)
        names[device.uuid] = name
        taken[name] = device.uuid
    return Names(names, taken)


def held_name(device: Device, held: Mapping[str, str]) -> str | None:
    """The name under which this device is in use; the plain one where there are several."""
    mine = sorted(name for name, uuid in held.items() if uuid == device.uuid)
    return device.name if device.name in mine else next(iter(mine), None)


def _candidates(device: Device) -> Iterable[str]:
    yield device.name
    digits = "".join(character for character in device.uuid.lower() if character in "0123456789abcdef")
    for length in range(_HEX_STEP, len(digits) + 1, _HEX_STEP):
        yield f"{device.name}-{digits[:length]}"
    yield from (f"{device.name}-{number}" for number in itertools.count(1))
