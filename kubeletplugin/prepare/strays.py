"""What was prepared before this ledger was begun: a damaged one was set aside, or another driver served the node.

The new ledger knows of no hold, and the kubelet sends no Prepare for what it believes prepared. So before anything is
committed, once in a ledger's life, each claim that the kubelet lists with CDI names of our kind gets a row and holds,
which end like any other (Unprepare, or a check). What no list tells of can still be seen on the devices themselves:
one that pods are on, or that can't be looked at, begins as draining.
"""

import asyncio
import logging
import re
from collections.abc import Sequence

from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.ledger.model import ClaimRecord, Drain, HeldDevice
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.effort import to_the_end
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.leftovers import leftover
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.sightings import Sightings

log = logging.getLogger(__name__)

_SHARE = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

Stray = tuple[ClaimRecord, Sequence[HeldDevice]]


class Strays:
    def __init__(self, node: Node, sightings: Sightings) -> None:
        self._node = node
        self._sightings = sightings
        self._settled = False
        self._lock = asyncio.Lock()

    async def adopt(self) -> None:
        """To be called before any commit; costs nothing once it is done. While the node has no devices nothing can be
        told, nor be committed, and it is left for later."""
        if self._settled:
            return
        async with self._lock:
            if not self._settled and self._node.inventory().devices:
                if not await self._node.ledger.is_settled():
                    await to_the_end(self._adopt())
                self._settled = True

    async def _adopt(self) -> None:
        node = self._node
        kubelet = await node.kubelet_claims()
        if kubelet.unreadable:
            log.warning("take in claims from before this ledger: the kubelet's list: %s", kubelet.unreadable)
        recorded = {record.uid for record in await node.ledger.claims()}
        strays = [
            stray
            for claim in kubelet.claims.values()
            if claim.uid not in recorded and (stray := self._stray(claim, node.inventory()))
        ]
        drains = await self._drains(strays, kubelet)
        await node.ledger.settle(strays, drains, node.clock.now())
        if strays:
            node.claims_changed()
        for record, devices in strays:
            self._sightings.follow(record.uid, record.pods)
            log.warning(
                "take in claim %s/%s from before this ledger: it has %s",
                record.namespace,
                record.name,
                ", ".join(device.name for device in devices),
                extra={"claim": record.uid},
            )

    def _stray(self, claim: KubeletClaim, inventory: Inventory) -> Stray | None:
        found: dict[str, tuple[Device, str]] = {}
        for cdi_name in claim.cdi_names:
            located = _locate(claim.uid, cdi_name, inventory)
            if located is None:
                log.warning(
                    "take in claim %s/%s from before this ledger: no device of this node is meant by %s",
                    claim.namespace,
                    claim.name,
                    cdi_name,
                    extra={"claim": claim.uid},
                )
            else:
                found[cdi_name] = located
        if not found:
            return None
        node = self._node
        record = records.adopted_record(
            claim,
            {cdi_name: device for cdi_name, (device, _) in found.items()},
            boot_id=node.boot_id,
            epoch=node.ledger.epoch,
            prepared_at=node.clock.now().isoformat(timespec="seconds"),
        )
        return record, [_held(device, share_id) for device, share_id in found.values()]

    async def _drains(self, strays: Sequence[Stray], kubelet: KubeletClaims) -> list[Drain]:
        node = self._node
        devices = [_held(device, "") for device in node.inventory().devices]
        look = await node.processes.look((), devices)
        known = frozenset[str]().union(*(claim.pods for claim in kubelet.claims.values()))
        held = {device.gpu_uuid for _, stray in strays for device in stray}
        for record in await node.ledger.claims():
            known |= record.pods
            held |= {hold.device.gpu_uuid for hold in await node.ledger.holds_of(record.uid)}
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
