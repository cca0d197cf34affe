"""The waker on a virtual clock: which pods are touched when, how often, and what is asked of the API server."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from kubeapi.client import PODS, RESOURCE_CLAIMS, Json, Resource
from kubeapi.errors import ApiError, Forbidden, NotFound, Unreachable
from kubeletplugin.app.pods import PodRecord, read_pod
from kubeletplugin.app.waking.waker import MOST_WAKES, READ_BURST, READ_SECONDS, Waker
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.prospects import LastCall, Prospect, State
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

T = TypeVar("T")
READY, BLOCKED = Prospect(State.READY), Prospect(State.BLOCKED, "held by claim other")
RESULT = {"driver": "gpu.nvidia.com", "request": "r", "pool": "node", "device": "gpu-0"}


async def at_once(work: Callable[[], T], /) -> T:
    return work()


class Pods:
    """Implements the waker's Pods."""

    def __init__(self) -> None:
        self.by_uid: dict[str, PodRecord] = {}
        self.listeners: list[Callable[[], None]] = []

    def records(self) -> Collection[PodRecord]:
        return self.by_uid.values()

    def get(self, uid: str) -> PodRecord | None:
        return self.by_uid.get(uid)

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    def stir(self) -> None:
        for callback in self.listeners:
            callback()


class Cluster:
    """Claims and what is known of them. Implements the waker's Prospects, Api and Counters."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.pods = Pods()
        self.claims: dict[str, Json] = {}
        self.calls: dict[str, LastCall] = {}
        self.prospects: dict[str, Prospect] = {}
        self.kubelet: dict[str, KubeletClaim] = {}
        self.last_call_at = 0.0
        self.listeners: list[Callable[[Collection[str]], None]] = []
        self.gets = 0
        self.looks = 0
        self.get_times: list[float] = []
        self.get_error: ApiError | None = None
        self.apply_error: ApiError | None = None
        self.applied: list[tuple[float, str, str]] = []
        self.counted: list[str] = []
        self._began = self.clock.monotonic()
        self.waker = Waker(
            self, self.pods, self, lambda: KubeletClaims(dict(self.kubelet)), self, self.clock, offload=at_once
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.waker.run())
        await self.clock.settle()
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        assert self.pods.listeners == [] and self.listeners == []

    @property
    def time(self) -> float:
        return self.clock.monotonic() - self._began

    # --- what happens ---
    def bind(self, name: str, *, wakes: int = 0, reserved: bool = True, deleting: bool = False, **status: Any) -> None:
        """A pod with a claim of its own comes to the node."""
        metadata: Json = {"uid": f"pod-{name}", "name": name, "namespace": "team"}
        if wakes:
            metadata["annotations"] = {"gpu.nvidia.com/wakes": str(wakes)}
        if deleting:
            metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": f"claim-{name}"}]}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", **status}}
        consumers = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}] if reserved else []
        allocation = {"devices": {"results": [RESULT]}}
        self.claims[f"claim-{name}"] = {
            "metadata": {"uid": f"uid-{name}", "namespace": "team", "name": f"claim-{name}"},
            "status": {"allocation": allocation, "reservedFor": consumers},
        }
        self.pods.by_uid[f"pod-{name}"] = read_pod(body)
        self.pods.stir()

    def refuse(self, name: str, gpu: str = "gpu-0") -> None:
        """A Prepare came and was refused for what is on a GPU."""
        self.last_call_at = self.clock.monotonic()
        self.calls[f"claim-{name}"] = LastCall(self.last_call_at, "held by claim other")
        self.prospects[f"uid-{name}"] = replace(BLOCKED, bells=frozenset({gpu}))
        self.kubelet[f"uid-{name}"] = KubeletClaim(
            f"uid-{name}", "team", f"claim-{name}", frozenset({f"pod-{name}"}), ()
        )

    def prepare(self, name: str) -> None:
        """A Prepare came and was answered, and the kubelet has the answer."""
        self.last_call_at = self.clock.monotonic()
        self.calls[f"claim-{name}"] = LastCall(self.last_call_at, "")
        names = frozenset({f"uid-{name}-gpu-0"})
        self.prospects[f"uid-{name}"] = Prospect(State.PREPARED, cdi_names=names, bells=frozenset({f"uid-{name}"}))
        self.kubelet[f"uid-{name}"] = KubeletClaim(
            f"uid-{name}", "team", f"claim-{name}", frozenset({f"pod-{name}"}), tuple(names)
        )

    def clear(self, name: str, gpu: str = "gpu-0") -> None:
        self.prospects[f"uid-{name}"] = READY
        self.ring(gpu)

    def ring(self, *bells: str) -> None:
        for callback in self.listeners:
            callback(bells)

    def remove(self, name: str) -> None:
        del self.pods.by_uid[f"pod-{name}"]
        self.pods.stir()

    # --- Prospects, Api, Counters ---
    def last_call(self, namespace: str, name: str) -> LastCall | None:
        return self.calls.get(name)

    def listen(self, callback: Callable[[Collection[str]], None]) -> Callable[[], None]:
        self.listeners.append(callback)
        return lambda: self.listeners.remove(callback)

    async def look(self, allocation: Allocation) -> Prospect:
        self.looks += 1
        return self.prospects.get(allocation.uid, READY)

    async def recall(self, uid: str) -> Prospect:
        self.looks += 1
        known = self.prospects.get(uid, READY)
        return known if known.state is State.PREPARED else replace(READY, bells=frozenset({uid}))

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        assert resource is RESOURCE_CLAIMS and namespace == "team"
        self.gets += 1
        self.get_times.append(self.time)
        if self.get_error is not None:
            raise self.get_error
        if name not in self.claims:
            raise NotFound(404, "NotFound", name)
        return self.claims[name]

    async def apply(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", field_manager: str
    ) -> Json:
        assert resource is PODS and (namespace, field_manager) == ("team", "gpuclaim-waking")
        if self.apply_error is not None:
            raise self.apply_error
        assert body["metadata"].keys() == {"uid", "annotations"} and body.keys() == {"metadata"}
        assert body["metadata"]["uid"] == f"pod-{name}"
        ((key, value),) = body["metadata"]["annotations"].items()
        assert key == "gpu.nvidia.com/wakes"
        self.applied.append((self.time, name, value))
        return {}

    def pod_woken(self, reason: str) -> None:
        self.counted.append(reason)

    def wake_failed(self, error: ApiError) -> None:
        self.counted.append(f"failed {error.status}")


async def test_a_pod_that_the_kubelet_never_asked_for_is_touched_after_some_seconds() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        await cluster.clock.advance(2.9)
        assert cluster.applied == [] and cluster.gets == 0
        await cluster.clock.advance(1.0)
    ((when, name, value),) = cluster.applied
    assert (name, value) == ("a", "1") and 3.0 <= when <= 3.5
    assert cluster.counted == ["unasked"]


async def test_a_refused_pod_is_touched_as_soon_as_the_reason_is_gone() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(100)
        assert cluster.applied == []
        cluster.clear("a")
        await cluster.clock.advance(0.5)
        assert [name for _, name, _ in cluster.applied] == ["a"]
    assert cluster.counted == ["refused"]


async def test_whatever_may_have_cleared_the_way_makes_looks_frequent_again() -> None:
    """What was in the way may still be ending when its end is told."""
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(100)
        cluster.ring("gpu-0")
        await cluster.clock.advance(1)
        assert cluster.applied == []
        cluster.prospects["uid-a"] = READY
        await cluster.clock.advance(2)
        assert [name for _, name, _ in cluster.applied] == ["a"]


async def test_looks_become_rarer_while_nothing_happens() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(600)
    assert 20 <= cluster.looks <= 30
    assert cluster.gets == 1


async def test_pods_that_do_not_wait_cost_no_request_and_no_wake_up() -> None:
    cluster = Cluster()
    cluster.bind("runs", containerStatuses=[{"state": {"running": {}}}])
    cluster.bind("over", phase="Succeeded")
    cluster.bind("leaves", deleting=True)
    async with cluster.running():
        cluster.bind("a")
        await cluster.clock.advance(1)
        cluster.bind("a", conditions=[{"type": "PodReadyToStartContainers", "status": "True"}])
        await cluster.clock.advance(60)
        assert cluster.clock.sleeping == 0
    assert cluster.applied == [] and cluster.gets == 0


@pytest.mark.parametrize("missing", ["the claim", "the reservation"])
async def test_a_pod_whose_claim_is_not_its_own_is_left_alone(missing: str) -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a", reserved=missing != "the reservation")
        if missing == "the claim":
            cluster.claims.clear()
        await cluster.clock.advance(60)
    assert cluster.applied == []


async def test_a_few_times_at_most_with_growing_pauses() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        for _ in range(40):
            await cluster.clock.advance(10)
            cluster.ring("gpu-0")
    times = [when for when, _, _ in cluster.applied]
    assert [value for _, _, value in cluster.applied] == ["1", "2", "3", "4", "5"]
    gaps = [second - first for first, second in itertools.pairwise(times)]
    assert all(gap >= pause for gap, pause in zip(gaps, (5, 10, 20, 40), strict=True))


async def test_the_count_on_the_pod_holds_past_a_restart() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a", wakes=MOST_WAKES - 1)
        cluster.bind("b", wakes=MOST_WAKES)
        cluster.bind("c", wakes=800)
        await cluster.clock.advance(60)
    assert [(name, value) for _, name, value in cluster.applied] == [("a", str(MOST_WAKES))]


async def test_many_pods_are_touched_a_few_a_second() -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(50):
            cluster.bind(f"p{number:02}")
        await cluster.clock.advance(20)
    times = [when for when, _, _ in cluster.applied]
    assert len({name for _, name, _ in cluster.applied}) == 50
    assert max(sum(begin <= when < begin + 1 for when in times) for begin in times) <= 16


async def test_a_pod_that_had_to_wait_for_its_touch_is_judged_anew() -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(30):
            cluster.bind(f"p{number:02}")
        await cluster.clock.advance(3.5)
        touched = {name for _, name, _ in cluster.applied}
        assert 10 <= len(touched) < 30
        for number in range(30):
            cluster.bind(f"p{number:02}", conditions=[{"type": "PodReadyToStartContainers", "status": "True"}])
        await cluster.clock.advance(60)
    assert {name for _, name, _ in cluster.applied} == touched


@pytest.mark.parametrize("call", ["get", "apply"])
async def test_while_the_api_server_is_away_nothing_is_hammered(call: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    setattr(cluster, f"{call}_error", Unreachable("connection refused"))
    async with cluster.running():
        for number in range(10):
            cluster.bind(f"p{number}")
        await cluster.clock.advance(70)
        assert 5 <= cluster.gets <= 17
        assert len(caplog.messages) == 1
        setattr(cluster, f"{call}_error", None)
        await cluster.clock.advance(6)
    assert len({name for _, name, _ in cluster.applied}) == 10


async def test_missing_rights_are_told_once_and_stop_no_other_pod(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.apply_error = Forbidden(403, "Forbidden", "pods is forbidden")
    async with cluster.running():
        cluster.bind("a")
        cluster.bind("b")
        await cluster.clock.advance(4)
        assert cluster.counted == ["failed 403"] * 2
        await cluster.clock.advance(600)
    assert len(cluster.counted) == 2 * MOST_WAKES
    assert sum("pods is forbidden" in text for text in caplog.messages) == 1


async def test_a_pod_that_went_is_forgotten() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(5)
        cluster.remove("a")
        await cluster.clock.advance(60)
        assert cluster.clock.sleeping == 0
    assert cluster.applied == []


async def test_a_device_that_becomes_free_is_asked_about_for_those_that_wait_for_it() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a", "gpu-0")
        cluster.bind("b")
        cluster.refuse("b", "gpu-1")
        await cluster.clock.advance(100)
        looks = cluster.looks
        cluster.prospects["uid-b"] = READY
        cluster.clear("a", "gpu-0")
        await cluster.clock.advance(1)
    assert [name for _, name, _ in cluster.applied] == ["a"]
    assert cluster.looks - looks == 2  # at a: before its claim was read, and after


async def test_what_becomes_free_during_a_look_is_not_missed() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        before, seen = cluster.look, cluster.prospects["uid-a"]

        async def look(allocation: Allocation) -> Prospect:
            if cluster.prospects["uid-a"] is seen:
                cluster.clear("a")
                return seen
            return await before(allocation)

        cluster.look = look  # type: ignore[method-assign]
        await cluster.clock.advance(4.5)
    assert [name for _, name, _ in cluster.applied] == ["a"]


async def test_pods_that_have_passed_are_never_read() -> None:
    """They wait for their image, say, while claims come and go around them."""
    cluster = Cluster()
    async with cluster.running():
        for number in range(5):
            cluster.bind(f"p{number}")
            cluster.prepare(f"p{number}")
        for _ in range(240):
            cluster.ring("gpu-0", "gpu-1", "uid-other")
            await cluster.clock.advance(0.5)
    assert cluster.gets == 0 and cluster.applied == []


async def test_one_that_had_passed_and_then_fails_is_looked_at_again() -> None:
    """A kubelet that was started anew asks again."""
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.prepare("a")
        await cluster.clock.advance(100)
        cluster.calls["claim-a"] = LastCall(cluster.clock.monotonic(), "the file system is full")
        cluster.ring("uid-a")
        await cluster.clock.advance(0.5)
    assert cluster.counted == ["late"]


@pytest.mark.parametrize("pods", [20, 100])
async def test_claims_that_come_and_go_make_blocked_pods_cost_no_reads(pods: int) -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(pods):
            cluster.bind(f"p{number}")
            cluster.refuse(f"p{number}")
        await cluster.clock.advance(30)
        assert cluster.gets == pods
        looks = cluster.looks
        for _ in range(120):
            cluster.ring("gpu-0")
            await cluster.clock.advance(0.5)
    assert cluster.gets == pods
    assert cluster.looks - looks <= 60 * 50 + 25


async def test_so_many_reads_a_second_and_no_more_whatever_happens() -> None:
    """Nothing that may be woken gets any better, and everything rings all the time."""
    cluster = Cluster()
    async with cluster.running():
        for number in range(300):
            cluster.bind(f"p{number}", reserved=number % 2 == 0)
            if number % 3 == 0:
                del cluster.claims[f"claim-p{number}"]
        for _ in range(120):
            cluster.ring(*(f"uid-p{number}" for number in range(300)))
            await cluster.clock.advance(0.5)
    assert most_in_a_second(cluster.get_times) <= READ_BURST + 1 / READ_SECONDS
    assert len(cluster.get_times) <= READ_BURST + 60 / READ_SECONDS
    assert len({name for _, name, _ in cluster.applied}) == 100


def most_in_a_second(times: Iterable[float]) -> int:
    times = list(times)
    return max(sum(begin <= when < begin + 1 for when in times) for begin in times)
