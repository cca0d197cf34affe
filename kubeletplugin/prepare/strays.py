"""What is prepared, or in use, without this ledger knowing: it is new because the last one was damaged, or another
driver served the node for a while.

The kubelet sends no Prepare for what it believes prepared. So before anything is committed, each claim that the kubelet
lists with CDI names of our kind gets a row and holds, which end like any other (Unprepare, or a check): R_STRAY of
docs/protocol. Not over a claim that was prepared since: then the listed one's Unprepare has been done, and the kubelet
hasn't heard of it. (Of two that are both taken in, the file tells which one lives: checks.Checks.) What no list
tells of can still be seen on the devices themselves: one that pods are on, or that can't be looked at, begins as
draining. Both are done at every take-over, and again only for what couldn't be told then: a list that couldn't be read,
names whose devices weren't here, a device that came later. What the kubelet lists besides went through this agent.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from kubeletplugin import crashpoints
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.ledger.model import ClaimRecord, Drain, HeldDevice, HoldState
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.effort import to_the_end
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.leftovers import leftover
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.sightings import Sightings
from kubeletplugin.prepare.unprepared import LatelyUnprepared

log = logging.getLogger(__name__)

_SHARE = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

Stray = tuple[ClaimRecord, Sequence[HeldDevice]]


class Strays:
    def __init__(self, node: Node, sightings: Sightings, unprepared: LatelyUnprepared) -> None:
        self._node = node
        self._sightings = sightings
        self._unprepared = unprepared
        self._looked_at: set[str] = set()
        self._missing: frozenset[str] | None = None
        """CDI names that were listed and not located; None while the list couldn't be read."""
        self._tried_with: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._lock = asyncio.Lock()

    async def adopt(self) -> None:
        """To be called before any commit; costs nothing once everything was told."""
        if not self._is_done():
            async with self._lock:
                if not self._is_done():
                    await to_the_end(self._adopt())

    def _is_done(self) -> bool:
        devices = self._devices()
        if not devices <= self._looked_at:
            return False
        return not devices or (self._missing is not None and (not self._missing or devices == self._tried_with))

    def _devices(self) -> frozenset[str]:
        return frozenset(device.uuid for device in self._node.inventory().devices)

    async def _adopt(self) -> None:
        node = self._node
        inventory = node.inventory()
        kubelet = await node.kubelet_claims()
        fresh = [device for device in inventory.devices if device.uuid not in self._looked_at]
        if kubelet.unreadable and not fresh:
            return
        prepared = {record.uid for record in await node.ledger.claims() if not records.is_adopted(record)}
        located = [
            (claim, self._located(claim, inventory))
            for claim in kubelet.claims.values()
            if claim.uid not in prepared and self._is_wanted(claim)
        ]
        strays = [
            self._stray(claim, found)
            for claim, found in located
            if found and not await self._is_followed(claim, found.values(), prepared)
        ]
        drains = await self._drains(fresh, strays, kubelet)
        if strays or drains:
            crashpoints.reached("adopt.seen")
            await node.ledger.adopt(strays, drains, node.clock.now())
            crashpoints.reached("adopt.committed")
            node.claims_changed()
        for record, devices in strays:
            self._sightings.follow(record.uid, record.pods)
            names = ", ".join(device.name for device in devices)
            self._tell(f"take in claim {record.namespace}/{record.name}, which the kubelet has prepared: {names}")
        self._looked_at |= {device.uuid for device in fresh}
        if not kubelet.unreadable:
            self._missing = frozenset(name for claim, found in located for name in claim.cdi_names if name not in found)
            self._tried_with = frozenset(device.uuid for device in inventory.devices)

    def _is_wanted(self, claim: KubeletClaim) -> bool:
        """Whether it hasn't been told of a name of the claim what it means."""
        if claim.uid in self._unprepared:
            return False
        return bool(claim.cdi_names) and (self._missing is None or not self._missing.isdisjoint(claim.cdi_names))

    def _located(self, claim: KubeletClaim, inventory: Inventory) -> dict[str, tuple[Device, str]]:
        """By CDI name. One that isn't found may be of a device that comes later."""
        found = {}
        for cdi_name in claim.cdi_names:
            located = _locate(claim.uid, cdi_name, inventory)
            if located is None:
                self._tell(
                    f"take in claim {claim.namespace}/{claim.name}: no device that is here is meant by {cdi_name}"
                )
            else:
                found[cdi_name] = located
        return found

    async def _is_followed(
        self, claim: KubeletClaim, found: Iterable[tuple[Device, str]], prepared: Collection[str]
    ) -> bool:
        """Whether a claim that was prepared after it has one of its devices."""
        devices = [_held(device, share_id) for device, share_id in found]
        for hold in await self._node.ledger.conflicts(claim.uid, devices):
            if hold.state is HoldState.HELD and hold.holder.id in prepared:
                self._tell(
                    f"leave out claim {claim.namespace}/{claim.name}, which the kubelet lists still: "
                    f"{hold.device.name} has gone on to claim {hold.holder.namespace}/{hold.holder.name}"
                )
                return True
        return False

    def _stray(self, claim: KubeletClaim, found: Mapping[str, tuple[Device, str]]) -> Stray:
        node = self._node
        record = records.adopted_record(
            claim,
            {cdi_name: device for cdi_name, (device, _) in found.items()},
            boot_id=node.boot_id,
            epoch=node.ledger.epoch,
            prepared_at=node.clock.now().isoformat(timespec="seconds"),
        )
        return record, [_held(device, share_id) for device, share_id in found.values()]

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)

    async def _drains(self, fresh: Sequence[Device], strays: Sequence[Stray], kubelet: KubeletClaims) -> list[Drain]:
        """Of devices that weren't looked at before and don't drain already."""
        node = self._node
        snapshot = await node.ledger.snapshot()
        draining = {hold.device.uuid for hold in snapshot.holds if hold.state is HoldState.DRAINING}
        devices = [_held(device, "") for device in fresh if device.uuid not in draining]
        if not devices:
            return []
        look = await node.processes.look((), devices)
        none = frozenset[str]()
        known = none.union(*(claim.pods for claim in kubelet.claims.values()), *(row.pods for row in snapshot.claims))
        held = {device.gpu_uuid for _, stray in strays for device in stray}
        held |= {hold.device.gpu_uuid for hold in snapshot.holds if hold.state is HoldState.HELD}
        drains = []
        for device in devices:
            left = leftover(look, device, (), known if device.gpu_uuid in held else ())
            if left is not None:
                drains.append(Drain(device, left.pods, left.reason))
        return drains


def _locate(uid: str, cdi_name: str, inventory: Inventory) -> tuple[Device, str] | None:
    """The device, and the id of its share, that a CDI name of the form ``<uid>-<device>[-<share id>]`` means."""
    if not cdi_name.startswith(f"{uid}-"):
        return None
    rest = cdi_name.removeprefix(f"{uid}-")
    for device in inventory.devices:
        if rest == device.name:
            return device, ""
        if rest.startswith(device.name) and (share := _SHARE.fullmatch(rest, len(device.name))):
            return device, share[1]
    return None


def _held(device: Device, share_id: str) -> HeldDevice:
    return HeldDevice(device.name, device.uuid, device.gpu_uuid, device.kind is DeviceKind.GPU, share_id)
