"""Preparing again, by itself, what the kubelet believes prepared and the ledger doesn't have (docs/protocol, R_HEAL).

The kubelet sends no Prepare for a claim that it believes prepared, so a pod that joined while an Unprepare was under
way, or a ledger that was lost, would leave containers without their devices for ever.
"""

import asyncio
import logging
from dataclasses import dataclass

from kubeapi import errors as api_errors
from kubeapi.client import RESOURCE_CLAIMS
from kubeletplugin import crashpoints
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.runs import Runs
from kubeletplugin.prepare.slots import ClaimTurns
from kubeletplugin.prepare.unprepared import LatelyUnprepared

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""How long such a run waits for what is in its way; the next sweep tries again."""


FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 600.0
"""How long a claim is left alone after a run that was refused: mostly the next one is, too."""


@dataclass(frozen=True, slots=True)
class _Refused:
    fingerprint: str
    until: float
    pause: float


class Healer:
    def __init__(self, node: Node, turns: ClaimTurns, runs: Runs, unprepared: LatelyUnprepared) -> None:
        self._node = node
        self._turns = turns
        self._runs = runs
        self._unprepared = unprepared
        self._refused: dict[str, _Refused] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def heal(self, kubelet: KubeletClaims) -> None:
        """Begins what is needed and doesn't wait for it. An unreadable list heals nothing."""
        if not kubelet.unreadable:
            self._refused = {uid: refused for uid, refused in self._refused.items() if kubelet.lists(uid)}
        # Together: an API server that hangs costs one deadline, not one for each claim.
        outcomes = await asyncio.gather(*map(self._heal, kubelet.claims.values()), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def begin(self, kubelet: KubeletClaims) -> None:
        """``heal`` in the background: the first call need not wait for the API server's word on other claims."""
        task = asyncio.ensure_future(self._heal_or_log(kubelet))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Runs that have begun aren't touched."""
        for task in self._tasks:
            task.cancel()

    async def _heal_or_log(self, kubelet: KubeletClaims) -> None:
        try:
            await self.heal(kubelet)
        except (RecoverableError, NotActiveError) as error:
            log.warning("prepare by itself: %s", error)
        except Exception:
            log.exception("prepare by itself")

    async def _heal(self, claim: KubeletClaim) -> None:
        allocation = await self._missing(claim)
        if allocation is None:
            return
        before = self._refused.get(claim.uid)
        if before is not None and before.fingerprint != allocation.fingerprint:
            before = None
        now = self._node.clock.monotonic()
        if before is not None and now < before.until:
            return
        log.log(
            logging.WARNING if before is None else logging.DEBUG,
            "prepare claim %s/%s by itself: the kubelet believes it prepared and there is no record of it",
            claim.namespace,
            claim.name,
            extra={"claim": claim.uid},
        )
        crashpoints.reached("heal.begun")
        ref = ClaimRef(claim.uid, claim.namespace, claim.name)
        run = self._runs.start(ref, now + PATIENCE_SECONDS)
        pause = FIRST_PAUSE_SECONDS if before is None else min(2 * before.pause, LONGEST_PAUSE_SECONDS)
        run.task.add_done_callback(lambda task: self._ended(ref, allocation.fingerprint, pause, task))

    def _ended(self, ref: ClaimRef, fingerprint: str, pause: float, task: "asyncio.Task[PrepareResult]") -> None:
        if task.cancelled() or task.exception() is not None:
            return
        if task.result().error:
            self._refused[ref.uid] = _Refused(fingerprint, self._node.clock.monotonic() + pause, pause)
        else:
            self._refused.pop(ref.uid, None)
            self._node.notices.claim_healed(ref)

    async def _missing(self, claim: KubeletClaim) -> Allocation | None:
        """The allocation that is to be prepared; None when nothing is."""
        node = self._node
        if not claim.cdi_names or claim.uid in self._unprepared or self._turns.busy(claim.uid):
            return None
        record = await node.ledger.claim(claim.uid)
        if record is not None and not records.is_adopted(record):
            return None
        try:
            live = await node.api.get(RESOURCE_CLAIMS, claim.name, namespace=claim.namespace)
        except api_errors.ApiError:
            return None
        allocation = claims.read(live)
        if allocation is None or allocation.uid != claim.uid or not allocation.pods & claim.pods:
            return None
        names = {node.specs.cdi_name(claim.uid, result.device, result.share_id) for result in allocation.results}
        # Both may have come during the GET.
        gone = claim.uid in self._unprepared or self._turns.busy(claim.uid)
        return allocation if names & set(claim.cdi_names) and not gone else None
