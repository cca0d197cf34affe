"""One Prepare of one claim, from its GET to row, file and answer.

The order of the steps is the design's: read the claim -> the row may answer -> undo an older allocation -> wait for
what is in the way -> read the claim again -> commit the row, then write the file, then answer (docs/protocol, R_ROW1).
What can clear up is waited for, since a refused Prepare is tried again only a minute later. While it waits it reads
the claim again, and begins anew when that is allocated differently (R_SAME). Waits may be cancelled at any time;
what changes something runs to its end.
"""

import asyncio
import functools
import logging
from dataclasses import dataclass, field

from kubeapi import errors as api_errors
from kubeapi.client import RESOURCE_CLAIMS, Json
from kubeletplugin import crashpoints
from kubeletplugin.errors import ClaimError, RecoverableError
from kubeletplugin.ledger.model import ClaimRecord, Hold, HoldState, Route
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.bells import INVENTORY, Bells, claim_key
from kubeletplugin.prepare.checks import Checks, Standing
from kubeletplugin.prepare.drains import DrainWatch
from kubeletplugin.prepare.effort import to_the_end
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.plan import Plan, UnknownDevice, Unready, explain_unknown, make_plan
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.release import Releaser
from kubeletplugin.prepare.sightings import Sightings
from kubeletplugin.prepare.strays import Strays

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 1.0
LONGEST_SECONDS = 5.0
"""How long a wait goes on without a fresh GET of the claim: ever longer while nothing rings, since mostly what ends a
wait rings, and pods may wait by the dozen."""

FIRST_RETRY_SECONDS = 0.1

_TRANSIENT = (
    api_errors.Unreachable,
    api_errors.ServerError,
    api_errors.TooManyRequests,
    api_errors.Unauthorized,
    api_errors.Gone,
    api_errors.NotFound,
)
"""Forbidden isn't among them: missing rights don't heal within a call, and the owner should read of them."""


class AllocatedAnew(Exception):
    """The claim has another allocation than the one that is being prepared."""

    def __init__(self, allocation: Allocation) -> None:
        super().__init__(allocation.uid)
        self.allocation = allocation


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a Prepare would wait for or be refused for, empty when nothing is in the way; and the bells that ring when
    that may have changed."""

    reason: str
    bells: frozenset[str]


@dataclass(slots=True)
class Effort:
    """One run. ``give_up_at`` (monotonic) bounds how long it goes on without a caller; ``reason`` is what it waits
    for now, in words for the pod's owner, and ``pause`` how long the next wait is."""

    ref: ClaimRef
    give_up_at: float
    reason: str = field(default="waiting for the API server's answer about the claim")
    pause: float = LOOK_AGAIN_SECONDS


class Preparer:
    def __init__(
        self,
        node: Node,
        bells: Bells,
        sightings: Sightings,
        releaser: Releaser,
        checks: Checks,
        drains: DrainWatch,
        strays: Strays,
    ) -> None:
        self._node = node
        self._bells = bells
        self._sightings = sightings
        self._releaser = releaser
        self._checks = checks
        self._drains = drains
        self._strays = strays

    async def prepare(self, effort: Effort) -> PrepareResult:
        """With the claim's turn. Raises ClaimError, NotActiveError; never RecoverableError."""
        allocation = await self._read(effort)
        crashpoints.reached("prepare.read")
        while True:
            try:
                return await self._prepare(effort, allocation)
            except AllocatedAnew as error:
                allocation = error.allocation
                log.info("begin prepare anew: the claim was allocated differently", extra={"claim": allocation.uid})
            except RecoverableError as error:
                if effort.reason != str(error):
                    log.warning("prepare: %s", error, extra={"claim": effort.ref.uid})
                effort.reason = str(error)
                await self._pause_for(effort, LOOK_AGAIN_SECONDS)
                allocation = await self._read(effort)

    async def answers(self, record: ClaimRecord, allocation: Allocation) -> bool:
        """Whether a Prepare with this allocation would be answered from the row as it is."""
        return not self._is_other(record, allocation) and not records.is_adopted(record) and await self._stands(record)

    async def look_ahead(self, allocation: Allocation) -> Outlook:
        """As far as this node knows, without waiting and without a request: whether a hold in the way is over is left
        to the checks, which ring when they end one. Raises RecoverableError."""
        try:
            plan, reason = await self._plan(allocation)
        except ClaimError as error:
            plan, reason = None, str(error)
        if plan is None:
            return Outlook(reason, frozenset({INVENTORY}))
        await self._strays.adopt()
        holds = await self._node.ledger.conflicts(allocation.uid, plan.holds())
        return Outlook(_in_the_way(holds[0], allocation) if holds else "", plan.gpus())

    async def _prepare(self, effort: Effort, allocation: Allocation) -> PrepareResult:
        if not allocation.results:
            return PrepareResult()
        record = await self._node.ledger.claim(allocation.uid)
        self._sightings.follow(allocation.uid, allocation.pods)
        if record is not None and self._is_other(record, allocation):
            await to_the_end(self._releaser.end(record, "allocated differently"))
            crashpoints.reached("prepare.undone")
            self._sightings.follow(allocation.uid, allocation.pods)
        elif record is not None and await self.answers(record, allocation):
            return await to_the_end(self._as_before(record))
        while True:
            plan, reason = await self._plan(allocation)
            keys = [claim_key(allocation.uid), *(plan.gpus() if plan else [INVENTORY])]
            with self._bells.listen(keys) as bell:
                if plan is not None:
                    reason = await self._obstacle(effort, allocation, plan)
                if plan is not None and not reason:
                    crashpoints.reached("prepare.free")
                    allocation = await self._read_same(effort, allocation)
                    crashpoints.reached("prepare.read-again")
                    done = await to_the_end(self._commit(allocation, plan, record))
                    if done is not None:
                        return done
                    continue
                effort.reason = reason
                crashpoints.reached("prepare.waiting")
                await self._wait(effort, bell)
            allocation = await self._read_same(effort, allocation)

    def _is_current(self, plan: Plan) -> bool:
        """Whether the devices are as they were planned for: a GPU may have been lost while the claim was read, or given
        to a pod by another device plugin."""
        inventory = self._node.inventory()
        return all(inventory.by_uuid(planned.device.uuid) == planned.device for planned in plan.devices)

    # --- what was prepared before ---
    def _is_other(self, record: ClaimRecord, allocation: Allocation) -> bool:
        """Of an adopted one only the devices are known; the commit puts a whole row in its place."""
        if not records.is_adopted(record):
            return record.fingerprint != allocation.fingerprint
        cdi_name = self._node.specs.cdi_name
        names = {cdi_name(allocation.uid, result.device, result.share_id) for result in allocation.results}
        return not names.issuperset(record.cdi_names)

    async def _stands(self, record: ClaimRecord) -> bool:
        """The row's answer may be given again (docs/protocol, R_BOOT)."""
        node = self._node
        return record.boot_id == node.boot_id and await node.offload(functools.partial(node.specs.exists, record.uid))

    async def _as_before(self, record: ClaimRecord) -> PrepareResult:
        kubelet = await self._node.kubelet_claims(record.uid)
        self._sightings.add(record.uid, kubelet.pods(record.uid))
        new = self._sightings.pods(record.uid) - record.pods
        if new:
            await self._node.ledger.add_pods(record.uid, new)
            self._sightings.written(record.uid, new)
        crashpoints.reached("prepare.repeated")
        return records.answer(record)

    # --- what is in the way ---
    async def _plan(self, allocation: Allocation) -> tuple[Plan | None, str]:
        """A plan, or what is missing. Raises ClaimError."""
        node = self._node
        inventory = node.inventory()
        own: set[str] = set()
        if any(device.problem for device in inventory.devices):
            holds = await node.ledger.holds_of(allocation.uid)
            own = {hold.device.uuid for hold in holds if hold.state is HoldState.HELD}
        try:
            return make_plan(allocation, inventory, node.specs, node.pool_name, own), ""
        except Unready as unready:
            return None, str(unready)
        except UnknownDevice as unknown:
            verdict = explain_unknown(unknown.name, inventory, await node.ledger.bindings())
        if isinstance(verdict, Unready):
            return None, str(verdict)
        raise verdict

    async def _obstacle(self, effort: Effort, allocation: Allocation, plan: Plan) -> str:
        """What to wait for; empty when nothing is in the way. Raises ClaimError for what won't clear up."""
        await self._strays.adopt()
        ended: set[int] = set()
        while True:
            conflicts = await self._node.ledger.conflicts(allocation.uid, plan.holds())
            if not conflicts:
                return ""
            hold = conflicts[0]
            if hold.holder.route is Route.CLASSIC:
                raise ClaimError(f"{_named(hold, allocation)}, by way of an extended resource")
            if hold.state is HoldState.DRAINING:
                return f"{hold.device.name} is draining: {self._drains.reason(hold.id) or hold.reason}"
            standing = await self._checks.standing(hold)
            if standing is Standing.VALID:
                await self._read_same(effort, allocation)
                raise ClaimError(f"{_named(hold, allocation)}, which is allocated the same device")
            if standing is not Standing.ENDED or hold.id in ended:
                return f"{_named(hold, allocation)}, {standing.value}"
            ended.add(hold.id)

    async def _commit(self, allocation: Allocation, plan: Plan, old: ClaimRecord | None) -> PrepareResult | None:
        """None when another claim was faster, or another device plugin."""
        node = self._node
        kubelet = await node.kubelet_claims(allocation.uid)
        await node.others.read()
        if not self._is_current(plan):
            return None
        self._sightings.follow(allocation.uid, allocation.pods | kubelet.pods(allocation.uid))
        record = records.make_record(
            allocation,
            plan,
            node.specs,
            aliases=records.aliases_for(allocation.uid, records.cdi_names(plan), kubelet, old),
            boot_id=node.boot_id,
            epoch=node.ledger.epoch,
            prepared_at=node.clock.now().isoformat(timespec="seconds"),
            pods=self._sightings.pods(allocation.uid),
        )
        if await node.ledger.commit_claim(record, plan.holds()):
            return None
        crashpoints.reached("prepare.committed")
        self._sightings.follow(record.uid, fingerprint=record.fingerprint)
        self._sightings.written(record.uid, record.pods)
        node.claims_changed()
        write = functools.partial(node.specs.write, record.uid, records.planned_spec(plan), record.aliases)
        await node.offload(write)
        crashpoints.reached("prepare.written")
        self._bells.ring([claim_key(record.uid)])
        return records.answer(record)

    # --- the claim object ---
    async def _read_same(self, effort: Effort, allocation: Allocation) -> Allocation:
        """A fresh GET; raises AllocatedAnew when it isn't the same allocation."""
        again = await self._read(effort)
        self._sightings.add(again.uid, again.pods)
        if again.fingerprint != allocation.fingerprint:
            raise AllocatedAnew(again)
        return again

    async def _read(self, effort: Effort) -> Allocation:
        ref = effort.ref
        claim = await self._get(effort)
        found = claim["metadata"]["uid"]
        if found != ref.uid:
            raise ClaimError(f"claim {ref.name} got replaced: it is {found} now, not {ref.uid}")
        allocation = claims.read(claim)
        if allocation is None:
            raise ClaimError(f"claim {ref.name} isn't allocated")
        if not allocation.reserved:
            raise ClaimError(f"claim {ref.name} isn't reserved for any pod")
        return allocation

    async def _get(self, effort: Effort) -> Json:
        """Waits while the API server can't answer."""
        ref = effort.ref
        delay = FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._node.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
            except _TRANSIENT as error:
                if isinstance(error, api_errors.NotFound) and claims.is_gone(error, ref.name):
                    raise ClaimError(f"claim {ref.name} doesn't exist any more") from error
                effort.reason = f"the API server doesn't give claim {ref.name}: {error}"
                wanted = error.retry_after
            except api_errors.ApiError as error:
                raise ClaimError(f"get claim {ref.name}: {error}") from error
            await self._pause_for(effort, wanted if wanted is not None else delay)
            delay = min(delay * 2, LOOK_AGAIN_SECONDS)

    async def _pause_for(self, effort: Effort, seconds: float) -> None:
        with self._bells.listen([claim_key(effort.ref.uid)]) as bell:
            await self._pause(effort, bell, seconds)

    async def _wait(self, effort: Effort, bell: asyncio.Event) -> None:
        await self._pause(effort, bell, effort.pause)
        effort.pause = LOOK_AGAIN_SECONDS if bell.is_set() else min(effort.pause * 2, LONGEST_SECONDS)

    async def _pause(self, effort: Effort, bell: asyncio.Event, seconds: float) -> None:
        if self._node.clock.monotonic() >= effort.give_up_at:
            raise ClaimError(f"gave up waiting: {effort.reason}")
        await self._bells.wait(bell, seconds)


def _in_the_way(hold: Hold, allocation: Allocation) -> str:
    if hold.state is HoldState.DRAINING:
        return f"{hold.device.name} is draining: {hold.reason}"
    return _named(hold, allocation)


def _named(hold: Hold, allocation: Allocation) -> str:
    """Names of other namespaces' claims aren't shown."""
    holder = hold.holder
    if holder.namespace == allocation.namespace:
        return f"{hold.device.name} is held by claim {holder.name}"
    return f"{hold.device.name} is held by claim {holder.id} of another namespace"
