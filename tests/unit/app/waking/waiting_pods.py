"""Pods that wait, as the waker sees them, on a virtual clock."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from kubeapi.client import PODS, RESOURCE_CLAIMS, Json, Resource
from kubeapi.errors import ApiError, NotFound
from kubeletplugin.app.waking.waker import Waker
from kubeletplugin.app.watch.pods import PodRecord, read_pod
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.kubelet_state import KubeletClaim, KubeletClaims
from kubeletplugin.prepare.prospects import LastCall, Prospect, State
from tests.fakes.clock import VirtualClock

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
