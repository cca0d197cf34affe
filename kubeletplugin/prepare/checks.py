"""Checks of holds against the API server and the kubelet: for what no Unprepare will end, or no Prepare will mend.

A check ends a hold only if a live GET says that the claim is gone, deallocated or allocated differently, *and* the
kubelet's list, read with the claim's turn, doesn't have it (R_KREF): while it has, Unprepare will come. An
API server that doesn't answer has said nothing. "Gone" is never taken from a watch.
"""

import enum
import functools
import logging
from collections.abc import Collection

from kubeapi import errors as api_errors
from kubeapi.client import RESOURCE_CLAIMS, Json
from kubeletplugin import crashpoints
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Hold
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.effort import to_the_end
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.pod_notes import PodNotes
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.release import Releaser
from kubeletplugin.prepare.sightings import Sightings
from kubeletplugin.prepare.slots import ClaimTurns
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

LIST_FILES = "list the claims' CDI files"


class Standing(enum.Enum):
    """How a hold that is in the way stands; the value goes on after "held by claim X, " in an error."""

    VALID = "which is allocated the device"
    BUSY = "which is being worked on"
    UNKNOWN = "about which the API server doesn't answer"
    LISTED = "which has let it go; waiting for its pod to end"
    ENDED = "which has ended"


class Checks:
    def __init__(
        self, node: Node, turns: ClaimTurns, sightings: Sightings, releaser: Releaser, pod_notes: PodNotes
    ) -> None:
        self._node = node
        self._turns = turns
        self._sightings = sightings
        self._releaser = releaser
        self._pod_notes = pod_notes
        self._troubles = Troubles(log)

    async def standing(self, hold: Hold) -> Standing:
        """Of a claim's hold (not a draining one), by a live GET; ends it if it is over and may be ended."""
        return await self._end_if_over(ClaimRef(hold.holder.id, hold.holder.namespace, hold.holder.name), hold.device)

    async def sweep(self, kubelet: KubeletClaims) -> None:
        """All claims once: ends what is over, writes missing files again, tells of claims that moved. Whatever is wrong
        with one of them, or with the folder of files, keeps no other from it."""
        node = self._node
        recorded = await node.ledger.claims()
        for uid in self._sightings.followed() - {record.uid for record in recorded}:
            if not self._turns.busy(uid):
                self._sightings.forget(uid)
        self._troubles.only([LIST_FILES, *(what(record) for record in recorded for what in (_checking, _restoring))])
        without_file = {record.uid for record in recorded} - await self._files(recorded)
        for record in recorded:
            with self._troubles.trying(_checking(record)):
                await self._check(record, kubelet, restore=record.uid in without_file)
        node.notices.swept()

    async def _files(self, recorded: Collection[ClaimRecord]) -> frozenset[str]:
        """UIDs of claims with a file; those of all ``recorded`` where the folder can't be listed."""
        files = frozenset(record.uid for record in recorded)
        with self._troubles.trying(LIST_FILES):
            files = await self._node.offload(self._node.specs.claim_uids)
        return files

    async def _check(self, record: ClaimRecord, kubelet: KubeletClaims, *, restore: bool) -> None:
        if not kubelet.lists(record.uid):
            await self._end_if_over(ClaimRef(record.uid, record.namespace, record.name))
        elif restore:
            await self._restore_file(record.uid)
        self._sightings.add(record.uid, kubelet.pods(record.uid))
        await self._pod_notes.compare(record)
        if self._sightings.moved(record.uid):
            await self._tell_of_move(record)

    async def mend(self, uids: Collection[str] | None) -> int:
        """Writes files of these claims that somebody else may have removed or changed, None for all that have none.
        Returns how many weren't as they should be. A claim that is being worked on is left to that, which may have
        removed the file itself."""
        node = self._node
        recorded = {record.uid: record for record in await node.ledger.claims()}
        if uids is None:
            uids = recorded.keys() - await node.offload(node.specs.claim_uids)
        mended = 0
        for uid in recorded.keys() & uids:
            with self._troubles.trying(_restoring(recorded[uid])):
                mended += await self._restore_file(uid)
        return mended

    async def remove_stray_files(self, kubelet: KubeletClaims) -> None:
        """At take-over: no file without a row, unless the kubelet may still need it."""
        node = self._node
        recorded = {record.uid for record in await node.ledger.claims()}
        for uid in await node.offload(node.specs.claim_uids) - recorded:
            if not kubelet.lists(uid):
                crashpoints.reached("takeover.stray")
                await node.offload(functools.partial(node.specs.remove, uid))

    async def restore_files(self, kubelet: KubeletClaims) -> None:
        """At take-over: every claim's file anew from its row."""
        node = self._node
        recorded = await node.ledger.claims()
        for record in recorded:
            self._sightings.follow(record.uid, record.pods, fingerprint=record.fingerprint)
            self._sightings.written(record.uid, record.pods)
            with self._troubles.trying(_restoring(record)):
                await self._write_file(record, kubelet)

    async def _end_if_over(self, ref: ClaimRef, wanted: HeldDevice | None = None) -> Standing:
        """``wanted`` is a device of the claim's that somebody else is allocated, too: who has it by any allocation has
        it rightly. A claim that is being worked on isn't ended."""
        if self._turns.busy(ref.uid):
            return await self._judge_busy(ref, wanted)
        async with self._turns.turn(ref.uid):
            record = await self._node.ledger.claim(ref.uid)
            if record is None:
                return Standing.ENDED
            try:
                claim = await self._get(ref)
            except api_errors.ApiError:
                return Standing.UNKNOWN
            allocation = claims.read(claim) if claim else None
            if allocation is not None and (
                allocation.fingerprint == record.fingerprint or self._has(allocation, wanted)
            ):
                return Standing.VALID
            if (await self._node.kubelet_claims(ref.uid)).lists(ref.uid):
                return Standing.LISTED
            crashpoints.reached("sweep.judged")
            await to_the_end(
                self._releaser.end(record, "claim is gone or allocated differently, unknown to the kubelet")
            )
            self._node.notices.hold_ended(ref)
            return Standing.ENDED

    async def _judge_busy(self, ref: ClaimRef, wanted: HeldDevice | None) -> Standing:
        if wanted is None:
            return Standing.BUSY
        try:
            claim = await self._get(ref)
        except api_errors.ApiError:
            return Standing.UNKNOWN
        allocation = claims.read(claim) if claim else None
        return Standing.VALID if allocation is not None and self._has(allocation, wanted) else Standing.BUSY

    def _has(self, allocation: Allocation, wanted: HeldDevice | None) -> bool:
        """Another node's devices have the same names."""
        return wanted is not None and (self._node.pool_name, wanted.name) in {
            (result.pool, result.device) for result in allocation.results if not result.admin
        }

    async def _get(self, ref: ClaimRef) -> Json | None:
        """None when this claim (by its UID) is gone."""
        try:
            claim = await self._node.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        except api_errors.NotFound as error:
            if not claims.is_gone(error, ref.name):
                raise
            return None
        return claim if claim["metadata"]["uid"] == ref.uid else None

    async def _restore_file(self, uid: str) -> bool:
        """True when it wasn't as it should be."""
        if self._turns.busy(uid):
            return False
        async with self._turns.turn(uid):
            record = await self._node.ledger.claim(uid)
            if record is None:
                return False
            crashpoints.reached("mend.begun")
            # A thread that writes outlives a cancelled task; the next holder of the lease must not meet it.
            return await to_the_end(self._write_file(record, await self._node.kubelet_claims(uid)))

    async def _write_file(self, record: ClaimRecord, kubelet: KubeletClaims) -> bool:
        """True when the file was made or changed."""
        node = self._node
        if records.is_adopted(record) and await self._is_closed(record):
            return False
        devices = records.recorded_spec(record, node.inventory())
        if devices is None:
            if record.boot_id != node.boot_id:
                # Its node numbers are those of before the reboot; Prepare writes it anew when it is asked.
                await node.offload(functools.partial(node.specs.remove, record.uid))
            return False
        aliases = records.aliases_for(record.uid, record.cdi_names, kubelet, record)
        written = await node.offload(functools.partial(node.specs.write, record.uid, devices, aliases))
        if record.boot_id != node.boot_id or aliases != record.aliases:
            await node.ledger.refresh_claim(record.uid, aliases)
        return written

    async def _is_closed(self, record: ClaimRecord) -> bool:
        """Whether one that was taken in from the kubelet's list has to stay without a file: it had none, and another
        claim has one of its devices, so this one's Unprepare may have been done already (R_STRAY)."""
        node = self._node
        if await node.offload(functools.partial(node.specs.exists, record.uid)):
            return False
        held = [hold.device for hold in await node.ledger.holds_of(record.uid)]
        return bool(await node.ledger.conflicts(record.uid, held))

    async def _tell_of_move(self, record: ClaimRecord) -> None:
        """The kubelet's own fault (see docs/protocol): it starts the next pod with the ids of the old allocation."""
        claim = await self._node.api.get(RESOURCE_CLAIMS, record.name, namespace=record.namespace)
        allocation = claims.read(claim)
        if allocation is None or allocation.uid != record.uid or allocation.fingerprint == record.fingerprint:
            return
        kubelet = await self._node.kubelet_claims(record.uid)
        stuck = allocation.pods & kubelet.pods(record.uid)
        if stuck and not self._turns.busy(record.uid):
            self._sightings.told(record.uid)
            self._node.notices.claim_moved(ClaimRef(record.uid, record.namespace, record.name), stuck)


def _checking(record: ClaimRecord) -> str:
    return f"check claim {record.namespace}/{record.name}"


def _restoring(record: ClaimRecord) -> str:
    return f"restore the CDI file of claim {record.namespace}/{record.name}"
