"""Judging a look: what is left on a device that its holder has let go. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.ports import Look


@dataclass(frozen=True, slots=True)
class Leftover:
    """``pods``, of the former holder's, must end, or be seen, before the device is free; ``pids`` by pod where known.

    A pod that isn't the former holder's isn't among ``pods``: it counts for as long as it is on the device, which it
    may leave and live on.
    """

    pods: frozenset[str]
    pids: Mapping[str, frozenset[int]]
    reason: str


def leftover(look: Look, device: HeldDevice, pods: Collection[str], sharers: Collection[str]) -> Leftover | None:
    """None when nothing is left.

    ``pods`` are the former holder's. On the device itself a process of any pod counts, known or not, but for
    ``sharers``: pods of claims that rightly share it (admin access, shares).
    """
    pids = {pod: look.alive[pod] for pod in pods if pod in look.alive}
    for pod, found in look.on_device.get(device.uuid, {}).items():
        if pod not in sharers or pod in pods:
            pids[pod] = pids.get(pod, frozenset()) | found
    unseen = frozenset(pods) - pids.keys() if look.blind else frozenset()
    blind = look.blind if unseen else look.blind_devices.get(device.uuid, "")
    if not pids and not unseen and not blind:
        return None
    return Leftover(frozenset(pods) & pids.keys() | unseen, pids, _reason(pids, blind))


def _reason(pids: Mapping[str, frozenset[int]], blind: str) -> str:
    count = len(frozenset().union(*pids.values()))
    running = f"{count} process{'' if count == 1 else 'es'} of its former pods still running" if pids else ""
    unknown = f"can't see whether processes are left ({blind})" if blind else ""
    return "; ".join(part for part in (running, unknown) if part)
