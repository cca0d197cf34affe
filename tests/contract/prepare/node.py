"""A node around a real ClaimManager and a real ledger: API server, kubelet's list, CDI folder and processes are
simulated, and whoever holds the state (``World``) outlives the agent (``Agent``), as on a real node.

Each outside call of the agent is a step with a name. A test may act at a step (``world.at``), or let the agent die
at one (``agent.die_at``): from then on nothing that it tries has an effect.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from kubeapi import errors as api_errors
from kubeapi.client import Json, Resource
from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.errors import NotActiveError
from kubeletplugin.ledger.model import HeldDevice, Hold
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.manager import ClaimManager
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.ports import Look, OverdueDrain
from tests.contract.prepare.virtual import InlineExecutor, LoopClock
from tests.contract.prepare.world import POOL, PREFIX, File, World

P = ParamSpec("P")
T = TypeVar("T")


class Died(BaseException):
    """The agent's process has ended; not an Exception, so that nothing of the agent's catches it."""


class Agent:
    """One process of the agent; ``start`` and later ``crash`` or ``stop``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self._left: int | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    async def start(self) -> "Agent":
        world = self.world
        world.holder = self
        self.ledger = await _Ledger.open(
            world.path / "ledger.db", fence=self, boot_id=world.boot_id, epoch=1, executor=InlineExecutor()
        )
        self.manager = ClaimManager(
            api=self,
            ledger=self.ledger,
            specs=_Specs(self),
            inventory=lambda: world.inventory,
            pool_name=POOL,
            boot_id=world.boot_id,
            fence=self,
            processes=_Processes(self),
            kubelet_state=_KubeletState(self),
            others=_OtherPlugins(self),
            clock=LoopClock(),
            notices=_Notices(world),
            offload=self.offload,
            lost=lambda: world.lease_lost or world.holder is not self,
            on_claims_changed=self._claims_changed,
        )
        await self.manager.recover()
        self.ledger.world = world
        self.background = asyncio.ensure_future(self.manager.run())
        return self

    # --- the end ---
    def die_at(self, steps: int) -> None:
        """Dies at the beginning of the step after this many more."""
        self._left = steps

    async def crash(self) -> None:
        self.dead = True
        manager = self.manager
        await self._drop_tasks(*self._calls, *manager._tasks, *manager._runs._tasks, *manager._healer._tasks)
        self.ledger._connection.close()

    async def stop(self) -> None:
        await self.manager.yield_()
        await self._drop_tasks()
        await self.ledger.close()

    async def _drop_tasks(self, *tasks: "asyncio.Task[Any]") -> None:
        own = [*tasks, self.background]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)

    def step(self, name: str) -> None:
        self.world.step(name)
        if self._left is not None:
            self._left -= 1
            self.dead = self.dead or self._left < 0
        if self.dead:
            raise Died(name)

    # --- calls, as the kubelet makes them ---
    async def prepare(self, *refs: ClaimRef, seconds: float = 43.0) -> Mapping[str, PrepareResult]:
        return await self.manager.prepare(refs, asyncio.get_running_loop().time() + seconds)

    async def prepare_one(self, ref: ClaimRef, seconds: float = 43.0) -> PrepareResult:
        return (await self.prepare(ref, seconds=seconds))[ref.uid]

    async def unprepare(self, ref: ClaimRef, seconds: float = 43.0) -> str:
        answers = await self.manager.unprepare([ref], asyncio.get_running_loop().time() + seconds)
        return answers[ref.uid]

    def begin(self, work: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._done)
        return task

    def _claims_changed(self) -> None:
        self.world.changes += 1

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._calls.discard(task)
        if not task.cancelled():
            task.exception()  # a test may not care how a call ended

    # --- what tests look at ---
    async def holders(self) -> dict[str, list[str]]:
        """Device name to the names of the claims that hold it."""
        return _by_device(hold for hold in (await self.ledger.snapshot()).holds if hold.state == "held")

    async def draining(self) -> dict[str, list[str]]:
        return {hold.device.name: sorted(hold.pods) for hold in await self.ledger.draining()}

    # --- ports ---
    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.step("fence")
        self.check_lease()
        yield

    def check_lease(self) -> None:
        if self.world.holder is not self:
            raise NotActiveError("hold the lease: another instance has it")

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        self.step(f"get {name}")
        await asyncio.sleep(0.002)
        if self.world.api_error is not None:
            await asyncio.sleep(self.world.api_delay)
            raise self.world.api_error
        try:
            found = self.world.claims[namespace, name]
        except KeyError:
            raise api_errors.NotFound(404, "NotFound", f'resourceclaims.resource.k8s.io "{name}" not found') from None
        return {"metadata": dict(found["metadata"]), "status": dict(found["status"])}

    async def offload(self, work: Callable[[], T], /) -> T:
        await asyncio.sleep(0.001)
        return work()


def _by_device(holds: Iterator[Hold]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for hold in holds:
        found.setdefault(hold.device.name, []).append(hold.holder.name)
    return found


class _Ledger(Ledger):
    """Fails as ``world`` says."""

    world: World | None = None

    async def _write(
        self, query: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self.world is not None and self.world.ledger_error is not None:
            raise self.world.ledger_error
        return await super()._write(query, *args, **kwargs)


class _Specs:
    """cdi.api.ClaimSpecs over a dictionary."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._world = agent.world

    def cdi_name(self, claim_uid: str, device_name: str, share_id: str | None = None) -> str:
        return f"{claim_uid}-{device_name}" + (f"-{share_id}" if share_id else "")

    def device_ids(self, cdi_name: str) -> tuple[str, ...]:
        return f"{PREFIX}{cdi_name}", "k8s.gpu.nvidia.com/driver=all"

    def write(self, claim_uid: str, devices: Sequence[ClaimDevice], aliases: Sequence[str] = ()) -> bool:
        self._agent.step(f"write {claim_uid}")
        self._agent.check_lease()
        if self._world.write_error is not None:
            raise self._world.write_error
        names = {device.cdi_name: device.device.uuid for device in devices}
        assert len(names) == len(devices), "the same device twice in one file is unresolvable"
        before = self._world.files.get(claim_uid)
        self._world.files[claim_uid] = File({**dict.fromkeys(aliases, ""), **names}, self._world.boot_id)
        return self._world.files[claim_uid] != before

    def remove(self, claim_uid: str) -> None:
        self._agent.step(f"remove {claim_uid}")
        self._agent.check_lease()
        self._world.files.pop(claim_uid, None)

    def exists(self, claim_uid: str) -> bool:
        return claim_uid in self._world.files

    def claim_uids(self) -> frozenset[str]:
        return frozenset(self._world.files)


class _Processes:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Look:
        world = self._agent.world
        self._agent.step("look")
        alive = (
            {} if world.blind else {pod: frozenset(world.processes[pod]) for pod in pods if world.processes.get(pod)}
        )
        on_device = {device.uuid: world.on_device.get(device.uuid, {}) for device in devices}
        await asyncio.sleep(0.002)
        return Look(alive, on_device, world.blind, world.blind_devices)


class _KubeletState:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def read(self, uid: str | None = None) -> KubeletClaims:
        world = self._agent.world
        self._agent.step("read kubelet's list")
        if world.kubelet_unreadable:
            return KubeletClaims(unreadable=world.kubelet_unreadable)
        return KubeletClaims({key: claim for key, claim in world.kubelet.items() if uid in (None, key)})


class _OtherPlugins:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def read(self) -> None:
        self._agent.step("read what others have")


class _Notices:
    def __init__(self, world: World) -> None:
        self._heard = world.notices
        self._counts = world.counts
        self._overdue: dict[int, str] = {}

    def drains_overdue(self, drains: Collection[OverdueDrain]) -> None:
        before, self._overdue = self._overdue, {drain.hold.id: drain.hold.device.name for drain in drains}
        for drain in drains:
            if drain.hold.id not in before:
                self._heard.append(("drain overdue", drain.hold.device.name, *sorted(drain.pids), drain.reason))
        for gone in before.keys() - self._overdue.keys():
            self._heard.append(("drain over", before[gone]))

    def claim_moved(self, ref: ClaimRef, pods: Collection[str]) -> None:
        self._heard.append(("claim moved", ref.name, *sorted(pods)))

    def claim_forgotten(self, ref: ClaimRef, pods: Collection[str]) -> None:
        self._heard.append(("claim forgotten", ref.name, *sorted(pods)))

    def swept(self) -> None:
        self._counts["sweeps"] += 1

    def hold_ended(self, ref: ClaimRef) -> None:
        self._counts["holds ended"] += 1

    def claim_healed(self, ref: ClaimRef) -> None:
        self._counts["healed"] += 1
