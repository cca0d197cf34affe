"""Wakes pods that wait for the kubelet's next try although one would succeed now.

After a Prepare that failed, and where its own GET of the claim was refused (in a burst the node authorizer's graph lags
behind the pod), the kubelet tries again 60 to 90 s later; any change of the pod object makes it try within
milliseconds. So the agent changes one annotation of its own on the pod (see rules for which).

A pod is woken a few times at most, with growing pauses; the annotation's value carries the count past a restart of the
agent. All pods together: a few a second. While the API server is away nothing is tried.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from deviceclasses.names import WAKES_ANNOTATION
from kubeapi.client import PODS, RESOURCE_CLAIMS, Json, Resource
from kubeapi.complaints import Complaints
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from kubeletplugin.app.pods import PodRecord
from kubeletplugin.app.waking.rules import GRACE_SECONDS, WAKE, Sight, Verdict, has_had_its_time, judge
from kubeletplugin.clock import Clock
from kubeletplugin.prepare import allocation as claims
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
"""All pods together: BURST at once, then one each REFILL_SECONDS."""

LOOK_SECONDS, LONGEST_LOOK_SECONDS = 2.0, 30.0
"""Between two looks at a pod that isn't to be woken now, doubling; whatever may have cleared the way begins anew."""
PASS_SECONDS = 0.5
"""Between two passes over the pods."""
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

    async def look(self, claim: Json) -> Prospect: ...


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
    """A pod that hasn't started. Times are Clock.monotonic(); no wake comes before ``not_before``."""

    seen: float
    look_at: float
    pause: float = LOOK_SECONDS
    not_before: float = 0.0
    wakes: int = 0


class Waker:
    """``run`` while the instance is active; ``way_may_be_clear`` whenever a hold or drain ends or devices change."""

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
        self._tokens = float(BURST)
        self._tokens_at = clock.monotonic()

    def way_may_be_clear(self) -> None:
        """Returns at once."""
        now = self._clock.monotonic()
        for waiting in self._waiting.values():
            waiting.look_at = min(waiting.look_at, now)
            waiting.pause = LOOK_SECONDS
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled. Raises NotActiveError."""
        leave = self._pods.listen(self._stirred.set)
        try:
            while True:
                self._stirred.clear()
                delay = await self._pass()
                await self._clock.sleep(PASS_SECONDS)
                await self._rest(delay)
        finally:
            leave()
            self._waiting.clear()

    async def _rest(self, seconds: float | None) -> None:
        """Until something stirs, at most ``seconds``."""
        tasks: set[asyncio.Future[object]] = {asyncio.ensure_future(self._stirred.wait())}
        if seconds is not None:
            tasks.add(asyncio.ensure_future(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _pass(self) -> float | None:
        """One look at each pod that is due. Seconds until the next is; None while no pod waits."""
        self._note(self._clock.monotonic())
        due = self._due(self._clock.monotonic())
        try:
            if due:
                await self._look_at(due)
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

    async def _look_at(self, due: Sequence[tuple[PodRecord, _Waiting]]) -> None:
        """Raises ApiError when the API server doesn't answer."""
        kubelet = await self._offload(self._read_kubelet)
        for pod, waiting in due:
            verdict = await self._judge(pod, kubelet)
            if verdict in WAKE:
                await self._wake(pod, waiting, verdict)

    def _due(self, now: float) -> list[tuple[PodRecord, _Waiting]]:
        """Pods that may be woken now, if it would help."""
        found = []
        for uid, waiting in self._waiting.items():
            pod = self._pods.get(uid)
            if pod is None or waiting.look_at > now:
                continue
            waiting.look_at, waiting.pause = now + waiting.pause, min(waiting.pause * 2, LONGEST_LOOK_SECONDS)
            if max(waiting.wakes, pod.wakes) >= MOST_WAKES or now < waiting.not_before:
                continue
            calls = [self._prospects.last_call(pod.namespace, name) for name in pod.claim_names]
            if has_had_its_time(pod, calls, now, waiting.seen, self._prospects.last_call_at):
                found.append((pod, waiting))
        return found

    async def _judge(self, pod: PodRecord, kubelet: KubeletClaims) -> Verdict:
        sights = []
        for name in sorted(pod.claim_names):
            try:
                claim = await self._api.get(RESOURCE_CLAIMS, name, namespace=pod.namespace)
            except NotFound:
                return Verdict.BLOCKED
            if pod.uid not in claims.pods_of(claim):
                return Verdict.BLOCKED
            prospect, call = await self._prospects.look(claim), self._prospects.last_call(pod.namespace, name)
            sights.append(Sight(claim["metadata"]["uid"], prospect, call))
        return judge(pod, sights, kubelet, self._clock.monotonic())

    async def _wake(self, pod: PodRecord, waiting: _Waiting, why: Verdict) -> None:
        """Raises ApiError when the API server doesn't answer."""
        if not self._take_token():
            # By the time that there is one the pod may have passed.
            waiting.look_at, waiting.pause = self._clock.monotonic() + PASS_SECONDS, LOOK_SECONDS
            return
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

    def _take_token(self) -> bool:
        now = self._clock.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._tokens_at) / REFILL_SECONDS)
        self._tokens_at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def _may_wait(pod: PodRecord) -> bool:
    return pod.phase in ("Pending", "Running") and not pod.started and not pod.deleting and bool(pod.claim_names)
