"""Ending a drain by a person's decision: for what never ends by itself, a process stuck in the kernel above all.

The person sees first what is still there, and ends just the drains that were shown: one that began since isn't among
them. Only a draining device can be released: a held one is its claim's, and goes with that claim's pods.
"""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeletplugin.errors import RecoverableError
from kubeletplugin.ledger.model import Hold, HoldState, Route
from kubeletplugin.prepare.drains import DrainWatch
from kubeletplugin.prepare.leftovers import leftover
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.release import Releaser


class UnknownDeviceError(RecoverableError):
    """No device of this name or UUID is known here."""


class NotDrainingError(RecoverableError):
    """There is nothing to release; the text says how the device stands."""


@dataclass(frozen=True, slots=True)
class Draining:
    """One drain of a device and what a look at this moment found: ``pids`` by pod UID; ``reason`` says what is left,
    empty when nothing was seen any more."""

    hold: Hold
    pids: Mapping[str, frozenset[int]]
    reason: str


class HandRelease:
    def __init__(self, node: Node, drains: DrainWatch, releaser: Releaser) -> None:
        self._node = node
        self._drains = drains
        self._releaser = releaser

    async def look(self, device: str) -> tuple[Draining, ...]:
        """``device`` is a name or a UUID. Raises UnknownDeviceError, NotDrainingError, NotActiveError."""
        holds = await self._draining(device)
        pods = frozenset[str]().union(*(hold.pods for hold in holds))
        look = await self._node.processes.look(pods, [hold.device for hold in holds])
        found = []
        for hold in holds:
            left = leftover(look, hold.device, hold.pods, await self._releaser.sharers("", hold.device))
            found.append(Draining(hold, left.pids, left.reason) if left else Draining(hold, {}, ""))
        return tuple(found)

    async def end(self, device: str, shown: Collection[int]) -> tuple[Draining, ...]:
        """Ends those of the device's drains whose ids were ``shown``, and returns them as they were."""
        ending = [draining for draining in await self.look(device) if draining.hold.id in shown]
        ended = [draining for draining in ending if await self._drains.end(draining.hold)]
        if not ended:
            raise NotDrainingError(
                f"release {device}: what was shown is over; look again, another drain may have begun"
            )
        return tuple(ended)

    async def _draining(self, device: str) -> list[Hold]:
        snapshot = await self._node.ledger.snapshot()
        inventory = self._node.inventory()
        names = {known.uuid: known.name for known in inventory.devices}
        names |= {hold.device.uuid: hold.device.name for hold in snapshot.holds}
        uuid = device if device in names else next((uuid for uuid, name in names.items() if name == device), "")
        if not uuid:
            raise UnknownDeviceError(f"release {device}: there is no such device on this node{_near(device, names)}")
        holds = [hold for hold in snapshot.holds if hold.device.uuid == uuid and not hold.device.admin]
        draining = [hold for hold in holds if hold.state is HoldState.DRAINING]
        if not draining:
            raise NotDrainingError(f"release {names[uuid]}: {_standing(holds)}")
        return draining


def _standing(holds: Collection[Hold]) -> str:
    if not holds:
        return "it is free, there is nothing to release"
    holders = ", ".join(
        f"claim {hold.holder.namespace}/{hold.holder.name}"
        if hold.holder.route is Route.CLAIM
        else f"extended resource of {hold.holder.namespace}/{hold.holder.name}"
        for hold in holds
    )
    return f"it is held by {holders} and not draining; delete the pods that use it instead"


def _near(word: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(word, [*names.values(), *names], n=3) or sorted(names.values())[:8]
    return f" (did you mean {', '.join(near)}?)" if near else ""
