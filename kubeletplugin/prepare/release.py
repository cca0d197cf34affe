"""Ending a hold, always in one order: remove the CDI file, look for processes, commit (docs/protocol, R_FILE1).

From the removal on nobody can start with the claim's devices, and who resolved them before has a pause process that
the look sees. Unprepare, the undo of an older allocation (R_DRAIN), and a check's verdict all come through here, since
none of them proves that processes have ended: what is left keeps the device draining, with just those pods on its list
that were found alive.
"""

import functools
import logging

from kubeletplugin import crashpoints
from kubeletplugin.ledger.model import ClaimRecord, Drain, HeldDevice, Hold, HoldState, Route
from kubeletplugin.prepare.bells import Bells, claim_key
from kubeletplugin.prepare.leftovers import leftover
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.sightings import Sightings

log = logging.getLogger(__name__)

DRAINS = "drains"
"""Rung when a device begins to drain."""


class Releaser:
    """Its methods are called with the claim's turn, and run to their end."""

    def __init__(self, node: Node, bells: Bells, sightings: Sightings) -> None:
        self._node = node
        self._bells = bells
        self._sightings = sightings

    async def end(self, record: ClaimRecord, why: str) -> None:
        """Raises NotActiveError, RecoverableError; a repeated call finishes what a failed one began."""
        node = self._node
        crashpoints.reached("release.begun")
        await node.offload(functools.partial(node.specs.remove, record.uid))
        crashpoints.reached("release.file-removed")
        kubelet = await node.kubelet_claims(record.uid)
        pods = record.pods | self._sightings.pods(record.uid) | kubelet.pods(record.uid)
        holds = [hold for hold in await node.ledger.holds_of(record.uid) if hold.state is HoldState.HELD]
        devices = [hold.device for hold in holds if not hold.device.admin]
        look = await node.processes.look(pods, devices)
        drains = []
        for device in devices:
            left = leftover(look, device, pods, await self.sharers(record.uid, device))
            if left is not None:
                drains.append(Drain(device, left.pods, left.reason))
        crashpoints.reached("release.looked")
        await node.ledger.end_claim(record.uid, drains, node.clock.now())
        crashpoints.reached("release.committed")
        self._sightings.forget(record.uid)
        node.claims_changed()
        log.info(
            "end hold of claim %s/%s: %s; draining: %s",
            record.namespace,
            record.name,
            why,
            ", ".join(drain.device.name for drain in drains) or "none",
            extra={"claim": record.uid},
        )
        self._bells.ring({hold.device.gpu_uuid for hold in holds} | {claim_key(record.uid)})
        if drains:
            self._bells.ring([DRAINS])

    async def sharers(self, uid: str, device: HeldDevice) -> frozenset[str]:
        """Pods of other claims that have this device rightly at the same time (or, after an undo, of the same claim
        again): their processes on it are no leftovers."""
        holds = await self._node.ledger.holds_on(device.gpu_uuid)
        sharers = {hold.holder.id for hold in holds if _is_sharer(hold, uid, device)}
        if not sharers:
            return frozenset()
        pods = await self._node.ledger.pods_on(device.gpu_uuid)
        none: frozenset[str] = frozenset()
        return none.union(*(pods.get(sharer, none) | self._sightings.pods(sharer) for sharer in sharers))


def _is_sharer(hold: Hold, uid: str, device: HeldDevice) -> bool:
    if hold.holder.route is not Route.CLAIM or hold.state is not HoldState.HELD or hold.holder.id == uid:
        return False
    return hold.device.whole_gpu or device.whole_gpu or hold.device.uuid == device.uuid
