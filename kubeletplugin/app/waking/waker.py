"""Wakes pods that wait for the kubelet's next try although one would succeed now.

After a Prepare that failed, and where its own GET of the claim was refused (in a burst the node authorizer's graph lags
behind the pod), the kubelet tries again 60 to 90 s later; any change of the pod object makes it try within
milliseconds. So the agent changes one annotation of its own on the pod (see rules for which).

A pod is woken a few times at most, with growing pauses; the annotation's value carries the count past a restart of the
agent. All pods together: a few a second. While the API server is away nothing is tried.

A waiting pod costs the API server next to nothing: its claims are read once, and again right before it is woken. In
between it is judged by what this node knows (ledger, inventory, the kubelet's list, the claims as they were read), at
growing intervals, and at once when just what it waits for may have changed. Whatever happens, so many reads are made a
second and no more.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deviceclasses.names import WAKES_ANNOTATION
from kubeapi.client import PODS, RESOURCE_CLAIMS, Json, Resource
from kubeapi.complaints import Complaints
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeletplugin.app.waking.budget import Budget
from kubeletplugin.app.waking.rules import GRACE_SECONDS, WAKE, Sight, Verdict, has_had_its_time, judge
from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.clock import Clock
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.ports import Offload, in_thread
from kubeletplugin.prepare.prospects import LastCall, Prospect

log = logging.getLogger(__name__)

FIELD_MANAGER = "gpuclaim-waking"

FIRST_PAUSE_SECONDS = 5.0
MOST_WAKES = 5
"""Of one pod, the pauses after them doubling; what they don't cure the kubelet's own tries may."""

BURST = 10
REFILL_SECONDS = 0.2
"""Wakes of all pods together: BURST at once, then one each REFILL_SECONDS."""
READ_BURST = 20
READ_SECONDS = 0.1
"""Likewise reads of claims."""

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 2.0, 30.0
"""Between two looks at a pod that isn't to be woken now, doubling; what may have cleared its way begins anew."""
PASS_SECONDS = 0.5
"""Between two passes over the pods."""
LOOKS = 25
"""At pods in one pass; the others' turn comes in the next."""
AWAY_SECONDS = 5.0
"""Between two looks at the same pods while the API server doesn't answer."""

_OF_THIS_POD = (Forbidden, Invalid, Conflict, NotFound)
"""Answers that say nothing of the next pod. None heals by trying again at once."""


class Pods(Protocol):
    def records(self) -> Collection[PodRecord]: ...

    def get(self, uid: str) -> PodRecord | None: ...

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]: ...


class Prospects(Protocol):
    """See prepare.prospects."""

    @property
    def last_call_at(self) -> float: ...

    def last_call(self, namespace: str, name: str) -> LastCall | None: ...

    def listen(self, callback: Callable[[Collection[str]], None]) -> Callable[[], None]: ...

    async def look(self, allocation: Allocation) -> Prospect: ...

    async def recall(self, uid: str) -> Prospect: ...


class Api(Protocol):
    """The part of client.KubeApi that is needed here."""

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json: ...

    async def apply(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", field_manager: str
    ) -> Json: ...


class Counters(Protocol):
    """Must return at once and not raise."""

    def pod_woken(self, reason: str) -> None:
        """``reason``: refused, late or unasked."""

    def wake_failed(self, error: ApiError) -> None: ...


@dataclass(slots=True)
class _Waiting:
    """A pod that hasn't started. Times are Clock.monotonic(); ``due`` is since when the look under way was; no wake
    comes before ``not_before``. ``claims`` by name are those reserved for it, as they were read last; ``bells`` ring
    when a look may find another verdict."""

    seen: float
    look_at: float
    due: float = 0.0
    pause: float = LOOK_SECONDS
    not_before: float = 0.0
    wakes: int = 0
    claims: dict[str, Allocation] = field(default_factory=dict)
    bells: frozenset[str] = frozenset()

    def look_soon(self, now: float) -> None:
        self.look_at, self.pause = min(self.look_at, now), LOOK_SECONDS


class Waker:
    """``run`` while the instance is active."""

    def __init__(
        self,
        api: Api,
        pods: Pods,
        prospects: Prospects,
        read_kubelet: Callable[[], KubeletClaims],
        counters: Counters,
        clock: Clock,
        offload: Offload = in_thread,
    ) -> None:
        """``read_kubelet`` may block."""
        self._api = api
        self._pods = pods
        self._prospects = prospects
        self._read_kubelet = read_kubelet
        self._counters = counters
        self._clock = clock
        self._offload = offload
        self._unanswered = Complaints(log, "look after pods that wait")
        self._refusals = Complaints(log, "wake a pod")
        self._waiting: dict[str, _Waiting] = {}
        self._stirred = asyncio.Event()
        self._wakes = Budget(clock, BURST, REFILL_SECONDS)
        self._reads = Budget(clock, READ_BURST, READ_SECONDS)
        self._heard: set[str] = set()

    async def run(self) -> None:
        """Until cancelled. Raises NotActiveError."""
        leave = (self._pods.listen(self._stirred.set), self._prospects.listen(self._rung))
        try:
            while True:
                self._stirred.clear()
                delay = await self._pass()
                await self._clock.sleep(PASS_SECONDS)
                await self._rest(delay)
        finally:
            for end in leave:
                end()
            self._waiting.clear()

    def _rung(self, bells: Collection[str]) -> None:
        """Pods that wait for something else sleep on."""
        self._heard.update(bells)
        for waiting in self._waiting.values():
            if not waiting.bells.isdisjoint(bells):
                waiting.look_soon(self._clock.monotonic())
                self._stirred.set()

    async def _rest(self, seconds: float | None) -> None:
        """Until something stirs, at most ``seconds``."""
        if seconds is None:
            await self._stirred.wait()
        else:
            await wait_for_any(self._clock, asyncio.ensure_future(self._stirred.wait()), seconds, cancel=True)

    async def _pass(self) -> float | None:
        """One look at each pod that is due, up to LOOKS. Seconds until the next is; None while no pod waits."""
        self._note(self._clock.monotonic())
        due = self._due(self._clock.monotonic())
        try:
            if due and await self._look_at(due):
                self._unanswered.healed()
        except ApiError as error:
            self._unanswered.failed(error, AWAY_SECONDS)
            for _, waiting in due:
                waiting.look_at, waiting.pause = self._clock.monotonic() + AWAY_SECONDS, LOOK_SECONDS
        looks = [waiting.look_at for waiting in self._waiting.values()]
        return max(min(looks) - self._clock.monotonic() - PASS_SECONDS, 0.0) if looks else None

    def _note(self, now: float) -> None:
        """Which pods wait."""
        pods = {pod.uid: pod for pod in self._pods.records() if _may_wait(pod)}
        self._waiting = {uid: waiting for uid, waiting in self._waiting.items() if uid in pods}
        for uid in pods.keys() - self._waiting.keys():
            self._waiting[uid] = _Waiting(now, now + GRACE_SECONDS)

    async def _look_at(self, due: Sequence[tuple[PodRecord, _Waiting]]) -> bool:
        """Whether anything was asked of the API server; raises ApiError when it doesn't answer."""
        kubelet = await self._offload(self._read_kubelet)
        asked = False
        for pod, waiting in due:
            self._heard.clear()
            asked |= await self._look(pod, waiting, kubelet)
            if not waiting.bells.isdisjoint(self._heard):
                waiting.look_soon(self._clock.monotonic())
        return asked

    def _due(self, now: float) -> list[tuple[PodRecord, _Waiting]]:
        """Pods that may be woken now, if it would help; those first that wait longest for their look."""
        found: list[tuple[PodRecord, _Waiting]] = []
        for uid, waiting in sorted(self._waiting.items(), key=lambda item: item[1].look_at):
            if waiting.look_at > now or len(found) == LOOKS:
                break
            pod = self._pods.get(uid)
            if pod is None:
                continue
            if max(waiting.wakes, pod.wakes) >= MOST_WAKES:
                waiting.look_at = now + LONGEST_LOOK_SECONDS
                continue
            if now < waiting.not_before:
                waiting.look_at = waiting.not_before
                continue
            calls = [self._prospects.last_call(pod.namespace, name) for name in pod.claim_names]
            if not has_had_its_time(pod, calls, now, waiting.seen, self._prospects.last_call_at):
                waiting.look_at = now + LOOK_SECONDS
                continue
            waiting.due, waiting.look_at = waiting.look_at, now + waiting.pause
            waiting.pause = min(waiting.pause * 2, LONGEST_LOOK_SECONDS)
            found.append((pod, waiting))
        return found

    async def _look(self, pod: PodRecord, waiting: _Waiting, kubelet: KubeletClaims) -> bool:
        """Whether anything was asked of the API server; raises ApiError when it doesn't answer."""
        sights = await self._known(pod, waiting, kubelet)
        verdict = judge(pod, sights, kubelet, self._clock.monotonic())
        if verdict in (Verdict.BLOCKED, Verdict.NOT_YET) or (
            verdict is Verdict.PASSED and len(sights) == len(pod.claim_names)
        ):
            return False
        if not self._wakes.has() or not self._reads.take(len(pod.claim_names)):
            # It keeps its turn, and is judged anew: by the time that it may be woken it may have passed.
            waiting.look_at, waiting.pause = waiting.due, LOOK_SECONDS
            return False
        sights = await self._read(pod, waiting)
        verdict = judge(pod, sights, kubelet, self._clock.monotonic())
        if verdict in WAKE and len(sights) == len(pod.claim_names):
            await self._wake(pod, waiting, verdict)
        return True

    async def _known(self, pod: PodRecord, waiting: _Waiting, kubelet: KubeletClaims) -> list[Sight]:
        """Without those of its claims of which nothing is known yet."""
        listed = {entry.name: uid for uid, entry in kubelet.claims.items() if entry.is_of(pod.uid, pod.namespace)}
        sights = []
        for name in sorted(pod.claim_names):
            allocation, call = waiting.claims.get(name), self._prospects.last_call(pod.namespace, name)
            if allocation is not None:
                sights.append(Sight(allocation.uid, await self._prospects.look(allocation), call))
            elif name in listed:
                sights.append(Sight(listed[name], await self._prospects.recall(listed[name]), call))
        waiting.bells = _bells(sights)
        return sights

    async def _read(self, pod: PodRecord, waiting: _Waiting) -> list[Sight]:
        """Without those of its claims that aren't reserved for it."""
        sights = []
        for name in sorted(pod.claim_names):
            waiting.claims.pop(name, None)
            try:
                claim = await self._api.get(RESOURCE_CLAIMS, name, namespace=pod.namespace)
            except NotFound:
                break
            allocation = claims.read(claim)
            if allocation is None or pod.uid not in allocation.pods:
                break
            waiting.claims[name] = allocation
            call = self._prospects.last_call(pod.namespace, name)
            sights.append(Sight(allocation.uid, await self._prospects.look(allocation), call))
        waiting.bells = _bells(sights)
        return sights

    async def _wake(self, pod: PodRecord, waiting: _Waiting, why: Verdict) -> None:
        """Raises ApiError when the API server doesn't answer."""
        self._wakes.take()
        count = max(waiting.wakes, pod.wakes) + 1
        # The UID keeps an apply from making a new pod, and from another pod of the name.
        metadata = {"uid": pod.uid, "annotations": {WAKES_ANNOTATION: str(count)}}
        try:
            await self._api.apply(
                PODS, pod.name, {"metadata": metadata}, namespace=pod.namespace, field_manager=FIELD_MANAGER
            )
        except ApiError as error:
            self._counters.wake_failed(error)
            if not isinstance(error, _OF_THIS_POD):
                raise
            if not isinstance(error, NotFound):
                self._refusals.failed(error, FIRST_PAUSE_SECONDS)
        else:
            self._refusals.healed()
            self._counters.pod_woken(why.name.lower())
            log.info("wake pod %s/%s: %s", pod.namespace, pod.name, why.value, extra={"pod": pod.uid})
        waiting.wakes = count
        waiting.not_before = waiting.look_at = self._clock.monotonic() + FIRST_PAUSE_SECONDS * 2 ** (count - 1)


def _bells(sights: Sequence[Sight]) -> frozenset[str]:
    return frozenset[str]().union(*(sight.prospect.bells for sight in sights))


def _may_wait(pod: PodRecord) -> bool:
    return pod.phase in ("Pending", "Running") and not pod.started and not pod.deleting and bool(pod.claim_names)
