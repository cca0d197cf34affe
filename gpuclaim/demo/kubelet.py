"""A kubelet without a node: it registers DRA plugins, prepares and unprepares the claims of pods, and nothing else.

Shared by the demo and the contract tests. What a plugin can observe is as in the real one (1.36): sockets, deadlines,
order of calls and of writes to dra_manager_state, what is called again after a restart and what isn't, and the words
of its errors. A failed Prepare isn't tried again here; the caller is the sync loop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from gpuclaim.demo.kubelet_plugins import KubeletTiming, Plugin, PluginManager
from gpuclaim.demo.kubelet_state import STATE_FILE, ClaimCache, ClaimInfo
from kubeletplugin.clock import Clock, SystemClock
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.dra.v1beta1 import api_pb2 as v1beta1
from kubeletplugin.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc

Wipe = Callable[[str | None], Awaitable[None]]
"""Deletes the node's ResourceSlices: of one driver, or all (None)."""


class PodError(Exception):
    """Why a pod's resources aren't prepared (or unprepared): the text of the kubelet's event."""


@dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod; ``drivers`` are those with results in its allocation."""

    uid: str
    namespace: str
    name: str
    drivers: tuple[str, ...]


class FakeKubelet:
    """``root`` stands for /var/lib/kubelet. ``append`` is how it takes a repeated Prepare: True to 1.36."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock | None = None,
        timing: KubeletTiming | None = None,
        wipe: Wipe | None = None,
        append: bool = True,
    ) -> None:
        self._clock = clock or SystemClock()
        self._timing = timing or KubeletTiming()
        self._wipe = wipe
        self._append = append
        self.registry = root / "plugins_registry"
        self.claims = ClaimCache(root / STATE_FILE)
        self.plugins = PluginManager(self.registry, self._clock, self._timing, self._connection_changed)
        self._tasks: list[asyncio.Task[None]] = []
        self._wipes: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Wipes the node's slices in the background, loads the checkpoint, looks for plugins."""
        self.registry.mkdir(parents=True, exist_ok=True)
        self.claims.load()
        self._tasks = [asyncio.create_task(self.plugins.run(), name="kubelet plugins")]
        if self._wipe is not None:
            self._tasks.append(asyncio.ensure_future(self._wipe_all(self._wipe)))

    async def stop(self) -> None:
        tasks = [*self._tasks, *self._wipes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks, self._wipes = [], {}
        await self.plugins.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def prepare(self, pod_uid: str, claims: Sequence[PodClaim]) -> dict[str, list[str]]:
        """What happens before a pod's first sandbox. Returns the CDI ids per claim UID; PodError with the event."""
        for claim in claims:
            self._drivers_registered(claim.drivers)
        batches: dict[str, list[v1.Claim]] = {}
        called: list[ClaimInfo] = []
        for claim in claims:
            info = self._reference(pod_uid, claim)
            if not info.prepared:
                called.append(info)
                for driver in claim.drivers:
                    batches.setdefault(driver, []).append(info.wire())
        for driver, batch in batches.items():
            await self._prepare_batch(driver, batch)
        for info in called:
            info.prepared = True
        self.claims.sync()
        return {claim.uid: self.claims.claims[claim.namespace, claim.name].cdi_ids() for claim in claims}

    async def unprepare(self, pod_uid: str, claims: Sequence[PodClaim]) -> None:
        """What happens when a pod's containers have ended: the last pod of a claim has it unprepared."""
        batches: dict[str, list[v1.Claim]] = {}
        ended: list[ClaimInfo] = []
        for claim in claims:
            info = self.claims.claims.get((claim.namespace, claim.name))
            if info is None:
                continue
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
                continue
            ended.append(info)
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info.wire())
        for driver, batch in batches.items():
            await self._unprepare_batch(driver, batch)
        for info in ended:
            self.claims.claims.pop((info.namespace, info.name), None)
        self.claims.sync()

    def _drivers_registered(self, drivers: Sequence[str]) -> None:
        for driver in drivers:
            self._plugin(driver)

    def _reference(self, pod_uid: str, claim: PodClaim) -> ClaimInfo:
        key = claim.namespace, claim.name
        info = self.claims.claims.get(key)
        if info is None:
            info = ClaimInfo(claim.uid, claim.namespace, claim.name, drivers={driver: [] for driver in claim.drivers})
            self.claims.claims[key] = info
        elif info.uid != claim.uid:
            raise PodError(
                f"prepare dynamic resources: old ResourceClaim with same name {claim.name} and different UID"
                f" {info.uid} still exists (previous pod force-deleted?!)"
            )
        info.pods.add(pod_uid)
        self.claims.sync()
        return info

    async def _prepare_batch(self, driver: str, batch: list[v1.Claim]) -> None:
        plugin = self._plugin(driver)
        with broken_calls("prepare dynamic resources: NodePrepareResources", plugin):
            response = await call_prepare(plugin, batch, self._timing.call)
        check_answer("prepare dynamic resources: NodePrepareResources", batch, response.claims)
        for info in self.claims.claims.values():
            if info.uid in response.claims:
                kept = info.drivers.get(driver, []) if self._append else []
                info.drivers[driver] = [*kept, *response.claims[info.uid].devices]

    async def _unprepare_batch(self, driver: str, batch: list[v1.Claim]) -> None:
        plugin = self._plugin(driver)
        with broken_calls("NodeUnprepareResources", plugin):
            response = await call_unprepare(plugin, batch, self._timing.call)
        check_answer("NodeUnprepareResources", batch, response.claims)

    def _plugin(self, driver: str) -> Plugin:
        plugin = self.plugins.choose(driver)
        if plugin is None:
            raise PodError(f"prepare dynamic resources: DRA driver {driver} is not registered")
        return plugin

    async def _wipe_all(self, wipe: Wipe) -> None:
        await wipe(None)

    def _connection_changed(self, driver: str) -> None:
        """Nobody connected for a while: the driver's slices go."""
        pending = self._wipes.get(driver)
        if self.plugins.usable(driver):
            if pending is not None:
                self._wipes.pop(driver).cancel()
        elif self._wipe is not None and (pending is None or pending.done()):
            self._wipes[driver] = asyncio.create_task(self._wipe_later(driver, self._wipe))

    async def _wipe_later(self, driver: str, wipe: Wipe) -> None:
        await self._clock.sleep(self._timing.wiping_delay)
        await wipe(driver)


async def call_prepare(plugin: Plugin, claims: Sequence[v1.Claim], timeout: float) -> v1.NodePrepareResourcesResponse:
    """By the service that was chosen at registration; both versions differ in the share id only."""
    if plugin.service == "v1.DRAPlugin":
        request = v1.NodePrepareResourcesRequest(claims=claims)
        return await v1_grpc.DRAPluginStub(plugin.channel).NodePrepareResources(request, timeout=timeout)
    older = v1beta1.NodePrepareResourcesRequest.FromString(
        v1.NodePrepareResourcesRequest(claims=claims).SerializeToString()
    )
    answer = await v1beta1_grpc.DRAPluginStub(plugin.channel).NodePrepareResources(older, timeout=timeout)
    return v1.NodePrepareResourcesResponse.FromString(answer.SerializeToString())


async def call_unprepare(
    plugin: Plugin, claims: Sequence[v1.Claim], timeout: float
) -> v1.NodeUnprepareResourcesResponse:
    if plugin.service == "v1.DRAPlugin":
        request = v1.NodeUnprepareResourcesRequest(claims=claims)
        return await v1_grpc.DRAPluginStub(plugin.channel).NodeUnprepareResources(request, timeout=timeout)
    older = v1beta1.NodeUnprepareResourcesRequest.FromString(
        v1.NodeUnprepareResourcesRequest(claims=claims).SerializeToString()
    )
    answer = await v1beta1_grpc.DRAPluginStub(plugin.channel).NodeUnprepareResources(older, timeout=timeout)
    return v1.NodeUnprepareResourcesResponse.FromString(answer.SerializeToString())


def check_answer(
    call: str,
    batch: Sequence[v1.Claim],
    answer: Mapping[str, v1.NodePrepareResourceResponse] | Mapping[str, v1.NodeUnprepareResourceResponse],
) -> None:
    names = {claim.uid: claim.name for claim in batch}
    for uid, entry in answer.items():
        if uid not in names:
            raise PodError(f"{call} returned result for unknown claim UID {uid}")
        if entry.error:
            raise PodError(f"{call} failed for ResourceClaim {names[uid]}: {entry.error}")
    if len(answer) != len(names):
        raise PodError(f"{call} skipped {len(names) - len(answer)} ResourceClaims")


@contextlib.contextmanager
def broken_calls(call: str, plugin: Plugin) -> Iterator[None]:
    """The kubelet closes its connection to a plugin that deregisters, also under a call."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise PodError(f"{call}: {rpc_text(error)}") from error
    except asyncio.CancelledError as error:
        if not plugin.closed:
            raise
        raise PodError(f"{call}: rpc error: code = Canceled desc = grpc: the client connection is closing") from error


def rpc_text(error: grpc.aio.AioRpcError) -> str:
    """As grpc-go prints it."""
    words = (word.capitalize() for word in error.code().name.split("_"))
    return f"rpc error: code = {''.join(words)} desc = {error.details()}"
