"""Keeps the node's ResourceSlices as wanted, for as long as this instance is the active one.

When it writes: at once when the wanted devices change; at once when somebody else changed or deleted a slice, for
ever (a kubelet that starts wipes them, once even 17 s after the driver's registration, and a node without slices gets
no pods), unless that becomes a fight (pace); again after an error, with back-off and jitter per pool. When nothing
changed, also at a restart, it writes nothing.

What can't be published costs only itself. Devices are validated here first; what the server drops or refuses by name
is learnt from its answers (exclusions). A pool that is refused as a whole (422, no device named) isn't sent again
until the wanted state changes or a long time has passed.

``stop`` ends writing and never deletes a slice: the next instance takes them over as they are. What was known of the
server ends with it: ``start`` looks before it writes, since another instance may have served meanwhile. The lease's
fence isn't held while writing, since API calls may hang; two writers for a moment do no harm, because every write
carries the version that it is based on and the one that stays repairs the rest.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from typing import Protocol

from kubeapi.client import NODES, RESOURCE_SLICES, KubeApi
from kubeapi.errors import ApiError, Invalid
from kubeapi.reflector import Change, Reflector
from kubeletplugin.clock import Clock
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.slices.compare import DroppedField, DroppedFieldsError, dropped_fields
from kubeletplugin.slices.exclusions import Exclusions
from kubeletplugin.slices.pace import RepairPace
from kubeletplugin.slices.pool import Pool, PoolContent, Publisher, cut_pool, device_json, new_slice
from kubeletplugin.slices.schedule import PoolState, Schedule
from kubeletplugin.slices.store import SliceStore
from kubeletplugin.slices.sync import Plan, PoolSync, SliceGone, SliceRefused, WriteVerb
from kubeletplugin.slices.validate import Checked, Problem, check_devices
from kubeletplugin.supervision import Supervisor, together
from kubeletplugin.troubles import Troubles

_log = logging.getLogger(__name__)

REFUSED_SECONDS = 300.0
"""How long a refused pool or device isn't tried again: only another server or policy would take it."""
NODE_UID_SECONDS = 60.0
"""How long the node's UID is taken as known: a node that was deleted and registered anew has another one, and slices
owned by the old one are garbage."""


class SliceObserver(Protocol):
    """Told what an operator wants to see: metrics, Events, readiness. Must be quick and not raise."""

    def slice_written(self, verb: WriteVerb) -> None: ...

    def not_published(self, pool: str, problem: Problem) -> None:
        """A device, or a key of it, is left out; told once while it lasts."""

    def fields_dropped(self, error: DroppedFieldsError) -> None:
        """The server doesn't keep fields that were sent; devices with them are told as not published, too."""

    def sync_failed(self, pool: str, error: Exception, retry_in: float) -> None:
        """``retry_in`` in seconds. Told at every try; logged already, once."""

    def accepted_changed(self, accepted: bool) -> None:
        """Whether the server holds exactly what is wanted."""


class SliceController:
    """One per agent. Not thread-safe: everything happens on one event loop."""

    def __init__(
        self,
        api: KubeApi,
        node_name: str,
        driver: str,
        clock: Clock,
        observer: SliceObserver,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._clock = clock
        self._observer = observer
        self._rng = rng or random.Random()
        self._publisher = Publisher(driver, node_name)
        self._node_uid_read = float("-inf")
        self._store = SliceStore(clock)
        self._sync = PoolSync(api, self._store, observer.slice_written)
        self._exclusions = Exclusions()
        self._wanted: Mapping[str, PoolContent] | None = None
        self._problems: dict[str, frozenset[Problem]] = {}
        self._schedule = Schedule(clock, self._rng, _log)
        self._accepted = False
        self._supervisor = Supervisor(clock, Troubles(_log))
        self._task: asyncio.Task[None] | None = None

    @property
    def accepted(self) -> bool:
        """The server holds exactly what is wanted, less what was told as not published."""
        return self._accepted

    # --- what is wanted ---

    def set_devices(self, inventory: Inventory) -> None:
        """Publishes the inventory's devices as the node's one pool, named after the node."""
        self.set_pools({self._publisher.node_name: _content_of(inventory)})

    def set_pools(self, pools: Mapping[str, PoolContent]) -> None:
        """Replaces everything wanted; pools that aren't in it are removed. Without a change nothing happens."""
        if pools == self._wanted:
            return
        before, self._wanted = self._wanted, dict(pools)
        for name in self._all_pools():
            if before is None or before.get(name) != pools.get(name):
                self._exclusions.forget_refused(name)
                self._schedule.state(name).forget_failure()
                self._set_accepted(False)
                self._schedule.look(name)

    def _all_pools(self) -> frozenset[str]:
        return self._store.pools() | (self._wanted or {}).keys() | self._schedule.pools()

    async def dry_run(self, inventory: Inventory) -> tuple[Problem, ...]:
        """Asks the server about each slice without writing any; what wouldn't be published.

        For a new version before it registers. Raises Invalid when a slice would be refused as a whole, and any
        other ApiError when the question couldn't be answered.
        """
        name = self._publisher.node_name
        await self._read_node_uid()
        while True:
            pool, problems = self._publishable(name, _content_of(inventory))
            dropped: list[DroppedField] = []
            try:
                await self._try_slices(pool, dropped)
            except SliceRefused as refusal:
                if not self._exclusions.learn_refused(pool, refusal.index, refusal.cause):
                    raise refusal.cause from refusal
                continue
            if not self._exclusions.learn_dropped(dropped):
                return problems

    async def _try_slices(self, pool: Pool, dropped: list[DroppedField]) -> None:
        for index in range(len(pool.slices)):
            body = new_slice(self._publisher, pool, index, pool.generation)
            try:
                stored = await self._api.create(RESOURCE_SLICES, body, dry_run=True)
            except Invalid as error:
                raise SliceRefused(index, error) from error
            dropped += dropped_fields(body["spec"], stored["spec"])

    # --- life ---

    def start(self) -> None:
        """Begins to watch and write. RuntimeError when it runs already."""
        if self._task is not None:
            raise RuntimeError("slice controller runs already")
        self._task = self._supervisor.start("keep the node's slices", self._serve)

    async def _serve(self) -> None:
        """From a first look on. Fails as a whole: a writer without its watch would work from what was, and who begins
        anew looks before it writes."""
        self._store = SliceStore(self._clock)
        self._sync = PoolSync(self._api, self._store, self._observer.slice_written)
        self._schedule.clear()
        reflector = self._new_reflector()
        try:
            await together(reflector.run(), self._run(reflector.synced))
        finally:
            self._set_accepted(False)

    def _new_reflector(self) -> Reflector:
        mine = f"spec.driver={self._publisher.driver},spec.nodeName={self._publisher.node_name}"
        reflector = Reflector(self._api, RESOURCE_SLICES, clock=self._clock, field_selector=mine, rng=self._rng)
        reflector.subscribe(self._told)
        return reflector

    async def stop(self) -> None:
        """No write begins after this is called; returns when the last one has ended or been given up."""
        await self._supervisor.stop()
        self._task = None
        self._set_accepted(False)

    async def _run(self, synced: asyncio.Event) -> None:
        await synced.wait()
        for name in self._all_pools():
            self._schedule.look(name)
        while True:
            due = self._due_pools()
            for name in due:
                await self._attempt(name)
            if not due:
                self._set_accepted(self._schedule.settled and self._wanted is not None)
                if self._wanted is None:
                    await self._schedule.until_woken()
                else:
                    await self._schedule.until_due(self._store.next_expiry())

    def _due_pools(self) -> list[str]:
        if self._wanted is None:
            return []
        for name in self._store.expire():
            self._schedule.look(name)
        return self._schedule.due()

    def _told(self, change: Change) -> None:
        pool = self._store.told(change)
        if pool is not None:
            self._schedule.changed_by_others(pool, deleted=change.type == "DELETED")

    # --- one look ---

    async def _attempt(self, name: str) -> None:
        state = self._schedule.state(name)
        undo = state.begin(self._clock.monotonic())
        if self._exclusions.has_refused(name) and state.last_attempt >= state.refused_until:
            self._exclusions.forget_refused(name)
        try:
            await self._bring_about(name, state, undo)
        except Invalid as error:
            self._failed(name, state, error, REFUSED_SECONDS)
        except ApiError as error:
            self._failed(name, state, error, state.backoff.next(error.retry_after))
        except Exception as error:
            self._failed(name, state, error, state.backoff.next())
        else:
            state.forget_failure()
            state.complaints.healed()
            if self._exclusions.has_refused(name):
                state.due = state.refused_until

    def _failed(self, name: str, state: PoolState, error: Exception, retry_in: float) -> None:
        state.failing = True
        state.due = self._clock.monotonic() + retry_in
        state.complaints.failed(error, retry_in)
        self._set_accepted(False)
        self._observer.sync_failed(name, error, retry_in)

    def _count_repair(self, name: str, undo: list[RepairPace]) -> None:
        """Once per attempt that writes. ``undo`` is emptied."""
        used_up = [pace for pace in undo if pace.repaired(self._clock.monotonic())]
        undo.clear()
        for pace in used_up:
            _log.warning(
                "pool %s: somebody keeps changing or deleting its ResourceSlices; they are put right every %.0f s from"
                " now on. Look for another driver named %s on this node, for mutating webhooks, and in the slices'"
                " metadata.managedFields",
                name,
                pace.refill_seconds,
                self._publisher.driver,
            )

    async def _bring_about(self, name: str, state: PoolState, undo: list[RepairPace]) -> None:
        """Every round but the last learns of something more that is gone or has to be left out."""
        content = (self._wanted or {}).get(name)
        if content is None:
            if obsolete := self._store.in_pool(name):
                self._count_repair(name, undo)
                await self._sync.delete(obsolete)
            return
        while True:
            pool, problems = self._publishable(name, content)
            self._tell_problems(name, problems)
            plan = self._sync.plan(self._publisher, pool)
            if plan.is_empty:
                break
            self._set_accepted(False)
            self._count_repair(name, undo)
            if plan.creates:
                await self._read_node_uid()
                plan = self._sync.plan(self._publisher, pool)
            if not await self._write(name, pool, plan, state):
                break
        # Not before: what is tried again, and refused again, is no news.
        self._problems[name] = frozenset(problems)

    async def _write(self, name: str, pool: Pool, plan: Plan, state: PoolState) -> bool:
        """Whether something was learnt that makes another plan necessary."""
        dropped: list[DroppedField] = []
        try:
            await self._sync.write(self._publisher, pool, plan, dropped)
        except SliceGone:
            return True
        except SliceRefused as refusal:
            if not self._exclusions.learn_refused(pool, refusal.index, refusal.cause):
                raise refusal.cause from refusal
            state.refused_until = self._clock.monotonic() + REFUSED_SECONDS
            return True
        finally:
            learnt = self._exclusions.learn_dropped(dropped)
            self._tell_dropped(name, dropped)
        return learnt

    def _publishable(self, name: str, content: PoolContent) -> tuple[Pool, tuple[Problem, ...]]:
        checked: Checked = check_devices(content.devices)
        left, problems = self._exclusions.apply(name, PoolContent(checked.devices, content.shared_counters))
        return cut_pool(name, left), checked.problems + problems

    def _tell_problems(self, pool: str, problems: Iterable[Problem]) -> None:
        known = self._problems.get(pool, frozenset())
        new = frozenset(problems) - known
        self._problems[pool] = known | new
        for problem in sorted(new, key=str):
            self._observer.not_published(pool, problem)

    def _tell_dropped(self, pool: str, dropped: list[DroppedField]) -> None:
        if dropped:
            self._observer.fields_dropped(DroppedFieldsError(pool, dropped))

    def _set_accepted(self, accepted: bool) -> None:
        if accepted != self._accepted:
            self._accepted = accepted
            self._observer.accepted_changed(accepted)

    async def _read_node_uid(self) -> None:
        """For the owner reference. An old answer is better than none: the node may be unreadable for a while."""
        known = bool(self._publisher.node_uid)
        if known and self._clock.monotonic() < self._node_uid_read + NODE_UID_SECONDS:
            return
        try:
            node = await self._api.get(NODES, self._publisher.node_name)
        except ApiError:
            if not known:
                raise
            return
        self._publisher = Publisher(self._publisher.driver, self._publisher.node_name, node["metadata"]["uid"])
        self._node_uid_read = self._clock.monotonic()


def _content_of(inventory: Inventory) -> PoolContent:
    return PoolContent(tuple(device_json(device) for device in inventory.devices))
