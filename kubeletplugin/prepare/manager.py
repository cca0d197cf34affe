"""The claim route's core: answers Prepare and Unprepare for claims, and keeps what they left behind in order.

One ClaimManager lives from a take-over of the lease until it yields; then the next holder makes its own. Order of
use: ``recover``, then serve calls and have ``run`` running, then ``yield_``.

Every call's work runs in a task of the manager's own: a caller that is cancelled (the kubelet's deadline) or runs out
of time leaves it running, so that the kubelet's next try, a minute later, finds it done. Calls for one claim are
served in the order in which they came. A newer call for a claim takes the place of a waiting older one, whose caller
gets the newer one's answer: its GET was made after both came, so nobody is answered for an allocation that is no
longer his (docs/protocol, R_SAME).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from kubeapi.client import Json
from kubeletplugin.cdi.api import ClaimSpecs
from kubeletplugin.clock import Clock, SystemClock
from kubeletplugin.errors import ClaimError, NotActiveError, RecoverableError
from kubeletplugin.fence import Fence
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare import status
from kubeletplugin.prepare.bells import INVENTORY, Bells, claim_key, wait_for_any
from kubeletplugin.prepare.by_hand import Draining, HandRelease
from kubeletplugin.prepare.checks import Checks
from kubeletplugin.prepare.drains import DrainWatch
from kubeletplugin.prepare.healing import Healer
from kubeletplugin.prepare.joins import Joins
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.pod_notes import PodNotes
from kubeletplugin.prepare.ports import (
    ClaimReader,
    KubeletState,
    Node,
    NoOtherPlugins,
    Notices,
    Offload,
    OtherPlugins,
    Processes,
    SilentNotices,
    in_thread,
)
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.prospects import Prospects
from kubeletplugin.prepare.release import Releaser
from kubeletplugin.prepare.runs import Runs
from kubeletplugin.prepare.sightings import Sightings
from kubeletplugin.prepare.slots import ClaimTurns
from kubeletplugin.prepare.strays import Strays
from kubeletplugin.prepare.unprepared import LatelyUnprepared
from kubeletplugin.supervision import Supervisor, together
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

T = TypeVar("T")

LINGER_SECONDS = 120.0
"""How long a run goes on after its caller's deadline: the kubelet's next try comes 60 to 90 s later."""

KUBELETS_LIST = "learn which claims the kubelet has prepared"
SWEEP = "sweep"
SWEEP_SECONDS = 30.0


def _unheard() -> None:
    """For where nobody listens."""


class ClaimManager:
    """Implements prepare.model.ClaimHandler."""

    def __init__(
        self,
        *,
        api: ClaimReader,
        ledger: Ledger,
        specs: ClaimSpecs,
        inventory: Callable[[], Inventory],
        pool_name: str,
        boot_id: str,
        fence: Fence,
        processes: Processes,
        kubelet_state: KubeletState,
        others: OtherPlugins | None = None,
        clock: Clock | None = None,
        notices: Notices | None = None,
        offload: Offload = in_thread,
        lost: Callable[[], bool] | None = None,
        on_claims_changed: Callable[[], None] = _unheard,
    ) -> None:
        """``on_claims_changed`` is called whenever a claim was prepared or has ended, also by a sweep or by a run that
        outlived its caller, and when a drain is over; it must return at once and not raise. ``lost`` tells a lease that
        is lost for good from one that couldn't be held for a moment (it may read a file); without it every
        NotActiveError is for good."""
        self._lost = lost
        self._node = Node(
            api=api,
            ledger=ledger,
            specs=specs,
            inventory=inventory,
            pool_name=pool_name,
            boot_id=boot_id,
            clock=clock or SystemClock(),
            fence=fence,
            processes=processes,
            kubelet=kubelet_state,
            others=others or NoOtherPlugins(),
            notices=notices or SilentNotices(),
            offload=offload,
            claims_changed=on_claims_changed,
        )
        self._bells = Bells(self._node.clock)
        self._turns = ClaimTurns()
        self._sightings = Sightings()
        self._releaser = Releaser(self._node, self._bells, self._sightings)
        self._drains = DrainWatch(self._node, self._bells, self._releaser)
        self._by_hand = HandRelease(self._node, self._drains, self._releaser)
        self._pod_notes = PodNotes(self._node, self._sightings)
        self._checks = Checks(self._node, self._turns, self._sightings, self._releaser, self._pod_notes)
        self._unprepared = LatelyUnprepared(self._node.clock)
        self._strays = Strays(self._node, self._sightings, self._unprepared)
        preparer = Preparer(
            self._node, self._bells, self._sightings, self._releaser, self._checks, self._drains, self._strays
        )
        self._runs = Runs(self._node, self._turns, preparer)
        self._healer = Healer(self._node, self._turns, self._runs, self._unprepared)
        self.prospects = Prospects(self._node, self._bells, self._runs, preparer)
        self._joins = Joins(self._node)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._troubles = Troubles(log)
        self._supervisor = Supervisor(self._node.clock, self._troubles, self._is_over)
        self._yielding = False

    # --- calls ---
    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        """All claims at the same time; each is answered by ``deadline`` at the latest."""
        give_up_at = deadline + LINGER_SECONDS
        runs = [self._runs.start(ref, give_up_at) for ref in claims]
        self.prospects.called(claims)
        outcomes = await _all(*(self._runs.follow(run, deadline) for run in runs))
        with self._node.fence.held():
            self.prospects.answered(claims, outcomes)
            return {ref.uid: result for ref, result in zip(claims, outcomes, strict=True)}

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        """A running Prepare of the claim is ended first: its waiting at once, its doing when it is done."""
        self._check_active()
        tasks = []
        for ref in claims:
            self._runs.interrupt(ref.uid)
            tasks.append(self._spawn(self._unprepare(ref)))
        errors = await _all(*(self._outcome(ref, task, deadline) for ref, task in zip(claims, tasks, strict=True)))
        with self._node.fence.held():
            return {ref.uid: error for ref, error in zip(claims, errors, strict=True)}

    # --- what others see and tell ---
    def observe_claim(self, claim: Json) -> None:
        """To be called with every state of every claim of this node that a watch shows."""
        uid = claim["metadata"]["uid"]
        self._sightings.observe(claim)
        self._note_pods(uid)
        self._bells.ring([claim_key(uid)])

    def observe_pods(self, uid: str, pods: frozenset[str]) -> None:
        """To be called with UIDs of pods that have the claim, wherever that was seen."""
        self._sightings.add(uid, pods)
        self._note_pods(uid)

    async def observe_kubelet(self) -> None:
        """To be called whenever the kubelet's dra_manager_state has changed."""
        kubelet = await self._kubelet_claims()
        for uid in self._sightings.followed():
            self._sightings.add(uid, kubelet.pods(uid))
            self._note_pods(uid)

    def inventory_changed(self) -> None:
        """To be called when the inventory has other devices than before."""
        self._bells.ring([INVENTORY])

    def waiting(self) -> tuple[tuple[ClaimRef, str], ...]:
        """Claims that are being prepared, and what each waits for."""
        return self._runs.waiting()

    async def status(self) -> dict[str, Any]:
        """For `gpuclaim status`, JSON-able; see status.render."""
        snapshot = await self._node.ledger.snapshot()
        return status.render(snapshot, self._node.inventory(), waiting=self.waiting())

    async def drains(self, device: str) -> tuple[Draining, ...]:
        """For `gpuclaim release`; see by_hand."""
        return await self._by_hand.look(device)

    async def release(self, device: str, shown: Collection[int]) -> tuple[Draining, ...]:
        self._check_active()
        return await self._by_hand.end(device, shown)

    async def mend_files(self, uids: Collection[str] | None) -> int:
        """To be called when CDI files of these claims (None: of any) were removed or changed by somebody else; returns
        how many were written again."""
        self._check_active()
        return await self._checks.mend(uids)

    # --- life ---
    async def recover(self) -> None:
        """At take-over, before the first call is served: files from rows, rows for what the kubelet believes prepared.
        Waits for nothing but this node; what only the API server can tell is mended afterwards."""
        kubelet = await self._kubelet_claims()
        await self._checks.remove_stray_files(kubelet)
        await self._strays.adopt()
        await self._checks.restore_files(kubelet)
        self._healer.begin(kubelet)

    async def sweep(self) -> None:
        """Ends what nothing else would end, mends what nothing else would mend."""
        kubelet = await self._kubelet_claims()
        for what, part in (
            ("check all claims", self._checks.sweep),
            ("prepare by itself", self._healer.heal),
            ("tell of pods that are stuck", self._joins.tell),
        ):
            with self._troubles.trying(what):
                await part(kubelet)

    async def run(self) -> None:
        """Sweeps and waits for draining devices until it is cancelled; raises NotActiveError when the lease is
        lost for good. No other failure ends either of the two."""
        await together(
            self._supervisor.keep("wait for draining devices", self._drains.run),
            self._supervisor.keep(SWEEP, self._sweeps),
        )

    async def yield_(self) -> None:
        """Stops all waits at once, lets what changes something finish, and does nothing more (docs/protocol, R_YIELD).

        Calls that were waiting raise NotActiveError, as do all later ones: they are the next holder's.
        """
        self._yielding = True
        self._healer.stop()
        await self._runs.stop()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # --- inside ---
    async def _kubelet_claims(self) -> KubeletClaims:
        """All of them; the trouble of a list that can't be read is told."""
        kubelet = await self._node.kubelet_claims()
        if kubelet.unreadable:
            advice = "until it can be read no claim is taken to have ended; a restart of the kubelet would fail on it"
            self._troubles.failed(KUBELETS_LIST, RecoverableError(f"{kubelet.unreadable}; {advice}"))
        else:
            self._troubles.over(KUBELETS_LIST)
        return kubelet

    async def _unprepare(self, ref: ClaimRef) -> str:
        async with self._turns.turn(ref.uid):
            self._check_active()
            try:
                record = await self._node.ledger.claim(ref.uid)
                if record is not None:
                    await self._releaser.end(record, "unprepared")
                else:
                    await self._node.offload(lambda: self._node.specs.remove(ref.uid))
            except (RecoverableError, ClaimError) as error:
                return str(error)
            self._unprepared.add(ref.uid)
            await self._joins.unprepared(ref)
            self.prospects.unprepared(ref)
        return ""

    async def _outcome(self, ref: ClaimRef, task: asyncio.Task[str], deadline: float) -> str:
        clock = self._node.clock
        if not await wait_for_any(clock, task, deadline - clock.monotonic()):
            return f"unprepare claim {ref.name}: still at it, trying on"
        try:
            return task.result()
        except NotActiveError:
            raise
        except Exception:
            log.exception("unprepare claim %s/%s", ref.namespace, ref.name, extra={"claim": ref.uid})
            return f"unprepare claim {ref.name}: internal error, see the agent's log"

    async def _sweeps(self) -> None:
        while True:
            await self._node.clock.sleep(SWEEP_SECONDS)
            await self.sweep()
            self._troubles.over(SWEEP)

    async def _is_over(self) -> bool:
        if self._yielding or self._lost is None:
            return True
        try:
            return await self._node.offload(self._lost)
        except (RecoverableError, OSError):
            return False

    def _note_pods(self, uid: str) -> None:
        if self._sightings.unwritten(uid) and not self._yielding:
            self._spawn(self._pod_notes.write(uid))

    def _check_active(self) -> None:
        if self._yielding:
            raise NotActiveError("serve a call: this instance is giving way to another")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _all(*outcomes: Coroutine[Any, Any, T]) -> list[T]:
    """Awaits all; then the first exception, if there was one."""
    results = await asyncio.gather(*outcomes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast("list[T]", results)
