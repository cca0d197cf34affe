"""All that only the active instance does: made at its take-over, ended when it yields.

Order at the take-over: ledger, leftovers of dead instances, names, the driver's CDI file, recovery of claims; then
slices and the standing work. The ledger is closed at an orderly end only: an instance that lost the lease leaves the
file alone, since a close would checkpoint beside the new holder.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kubeapi.client import Json
from kubeletplugin import crashpoints
from kubeletplugin.app.files.cdi_folder import CdiFolder
from kubeletplugin.app.files.cdi_mending import SpecKeeper
from kubeletplugin.app.files.cdi_specs import HostSpecs
from kubeletplugin.app.files.file_watch import FileWatch
from kubeletplugin.app.files.ledger_file import LedgerFile
from kubeletplugin.app.metrics.view import LedgerView
from kubeletplugin.app.offering import Offering
from kubeletplugin.app.parts import Parts, make_classic_judge, make_manager, make_waker
from kubeletplugin.app.tell.claim_status import ClaimStatuses
from kubeletplugin.app.watch.claim_watch import ClaimWatches, ReadClaims
from kubeletplugin.app.watch.classic_watch import ClassicWatch
from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.classic.checkpoint import DeviceCheckpointFile
from kubeletplugin.classic.judge import ClassicJudge
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.by_hand import Draining
from kubeletplugin.prepare.kubelet_state import KubeletStateFile
from kubeletplugin.prepare.manager import ClaimManager
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.supervision import RESTART_SECONDS, Supervisor
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.db"
CDI_PREFIX = "k8s.gpu.nvidia.com-"
FOLLOW_SECONDS = 1.0
FIRST_LOOK_SECONDS = 5.0
"""How long a take-over waits for a look under bound names; without one it goes on with what is known."""


class ActiveNode:
    """Implements dra.takeover.ActiveWork, and prepare.model.ClaimHandler while it is active."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._ledger: Ledger | None = None
        path = parts.settings.plugin_dir / LEDGER_FILE
        self._file = LedgerFile(path, parts.lease, parts.clock, parts.notices, self._damaged)
        self.begin_anew: Callable[[str], None] = log.error
        """Told why this instance must step back and take over again."""
        self._folder: CdiFolder | None = None
        self._manager: ClaimManager | None = None
        self._watches: ClaimWatches | None = None
        self._troubles = Troubles(log)
        self._supervisor = Supervisor(parts.clock, self._troubles, self._lost)
        self._offered: Callable[[], Inventory] = lambda: Inventory("")
        self._claims_changed = asyncio.Event()

    # --- calls ---
    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        return await self._active().prepare(claims, deadline)

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        return await self._active().unprepare(claims, deadline)

    async def status(self) -> dict[str, Any] | None:
        """For `gpuclaim status`; None while this instance isn't active."""
        if self._manager is None:
            return None
        cdi_problems = self._folder.problems if self._folder is not None else ()
        return {**await self._manager.status(), "cdiProblems": list(cdi_problems)}

    async def view(self) -> LedgerView | None:
        """For a scrape; None while this instance isn't active."""
        manager, ledger = self._manager, self._ledger
        if manager is None or ledger is None:
            return None
        return LedgerView(await ledger.snapshot(), await ledger.size(), len(manager.waiting()))

    @property
    def inventory(self) -> Inventory | None:
        """With what is withheld for other reasons than the hardware's; None while this instance isn't active."""
        return self._offered() if self._manager is not None else None

    async def drains(self, device: str) -> Sequence[Draining]:
        """For `gpuclaim release`; implements app.ends.release_routes.Releases."""
        return await self._active().drains(device)

    async def release(self, device: str, shown: Collection[int], who: str) -> Sequence[Draining]:
        ended = await self._active().release(device, shown)
        for draining in ended:
            self._parts.notices.drain_released(draining.hold.device, draining.pids, who)
        return ended

    def pod(self, uid: str) -> PodRecord | None:
        return self._parts.pods.get(uid)

    def _active(self) -> ClaimManager:
        if self._manager is None:
            raise NotActiveError("serve a call: this instance isn't active")
        return self._manager

    def _damaged(self, reason: str) -> None:
        self.begin_anew(reason)

    # --- life ---
    async def activate(self, epoch: int) -> None:
        parts = self._parts
        parts.metrics.takeovers.inc()
        self._ledger = ledger = await self._file.open(epoch)
        crashpoints.reached("takeover.opened")
        fence = parts.lease.fence(epoch)
        writer = SpecWriter(
            parts.settings.cdi_dir, fence, prefix=CDI_PREFIX, instance=parts.lease.instance, epoch=epoch
        )
        await asyncio.to_thread(writer.remove_leftovers)
        crashpoints.reached("takeover.cleaned")
        specs = await asyncio.to_thread(HostSpecs, writer, parts.hardware)
        settings = parts.settings
        self._folder = folder = CdiFolder(specs, settings.cdi_dir, settings.host_root, parts.notices, self._troubles)
        parts.inventory.use_bindings(ledger)
        bound = self._supervisor.start("look under bound names", self._look_under_bindings, once=True)
        await asyncio.wait([bound], timeout=FIRST_LOOK_SECONDS)
        if bound.done() and parts.inventory.current is not None:
            await folder.refresh(parts.inventory.current.driver_version)
        inventory = self._inventory(bound)
        classic = make_classic_judge(parts)
        await classic.read()
        self._offered = lambda: classic.withhold(inventory())
        read = ReadClaims(parts.api)
        self._manager = manager = make_manager(
            parts, read, ledger, fence, specs, self._offered, classic, self._claims_changed.set
        )
        parts.notices.take_up(await ledger.told())
        statuses = ClaimStatuses(parts.api, parts.settings.node_name, parts.clock, inventory)

        def observe(claim: Json) -> None:
            manager.observe_claim(claim)
            statuses.observe(claim)

        self._watches = watches = ClaimWatches(parts.api, parts.clock, observe, statuses.gone, read)
        await manager.recover()
        crashpoints.reached("takeover.recovered")
        watch = FileWatch(KubeletStateFile(parts.settings.kubelet_root_dir).path)
        start = self._supervisor.start
        start("sweep", manager.run)
        start("keep the ledger's file", lambda: self._file.keep(ledger))
        start("watch the node's pods", parts.pods.run)
        if parts.settings.wake_pods:
            start("wake pods", make_waker(parts, manager).run)
        self._start_offering(ledger, manager, classic, inventory, bound)
        start("keep the CDI folder", lambda: folder.run(parts.inventory))
        keeper = SpecKeeper(writer.folder, CDI_PREFIX, specs, manager.mend_files, parts.notices, parts.clock)
        start("put back CDI files", keeper.run)
        start("watch the kubelet's state", watch.run)
        start("read the kubelet's state", lambda: _observe_kubelet(manager, watch))
        self._claims_changed.set()
        start("follow claims", lambda: self._follow_claims(ledger, watches, statuses))
        start("write claims' status", statuses.run)
        start("tell claims of the hardware", lambda: self._tell_looks(statuses))
        parts.slices.start()

    async def deactivate(self) -> None:
        """Slices first: claims have a fence should this hang and another instance go on without waiting; they don't.
        Every step is taken, whatever becomes of another: what has no fence must not go on beside the next holder."""
        for step in (
            self._parts.slices.stop,
            self._stop_claims,
            self._supervisor.stop,
            self._stop_watches,
            self._close_ledger,
        ):
            try:
                await step()
            except Exception:
                log.exception("give the node up: go on after a step that failed")

    async def _stop_claims(self) -> None:
        if self._manager is None:
            return
        try:
            await self._manager.yield_()
            crashpoints.reached("yield.quiet")
        finally:
            self._manager = None

    async def _stop_watches(self) -> None:
        watches, self._watches = self._watches, None
        if watches is not None:
            await watches.stop()

    async def _close_ledger(self) -> None:
        self._parts.inventory.use_bindings(None)
        ledger, self._ledger = self._ledger, None
        if ledger is None:
            return
        if await self._lost():
            ledger.abandon()
        else:
            await ledger.close()
            crashpoints.reached("yield.closed")

    async def _lost(self) -> bool:
        """Whether another instance is active for sure; a lease that can't be read says nothing."""
        try:
            return await asyncio.to_thread(self._parts.lease.lost)
        except (RecoverableError, OSError):
            return False

    async def _look_under_bindings(self) -> None:
        """Until one succeeded: a name as it was looked up before may mean another GPU than the one it is bound to."""
        while True:
            try:
                await self._parts.inventory.refresh()
                return
            except RecoverableError as error:
                log.debug("look under bound names: %s", error)  # the inventory tells
            await self._parts.clock.sleep(RESTART_SECONDS)

    def _inventory(self, bound: asyncio.Task[None]) -> Callable[[], Inventory]:
        """What was found under bound names, empty before."""

        def inventory() -> Inventory:
            known = self._parts.inventory.current if bound.done() else None
            return known or Inventory(driver_version="")

        return inventory

    # --- standing work ---
    def _start_offering(
        self,
        ledger: Ledger,
        manager: ClaimManager,
        classic: ClassicJudge,
        inventory: Callable[[], Inventory],
        bound: asyncio.Task[None],
    ) -> None:
        parts, start = self._parts, self._supervisor.start
        checkpoint = DeviceCheckpointFile(parts.settings.kubelet_root_dir).path
        others = ClassicWatch(classic, checkpoint, parts.pods, parts.clock, manager.observe_pods)
        start("follow other device plugins", others.run)
        offering = Offering(parts, ledger, manager, classic, others)
        start("publish the inventory", lambda: offering.publish(bound))
        start("tell of the driver", offering.follow_driver)
        start("withhold what others have", lambda: offering.follow_others(inventory))
        start("tell of what others have", lambda: offering.tell_of_others(inventory))
        start("note what people were told", offering.note_told)

    async def _tell_looks(self, statuses: ClaimStatuses) -> None:
        async for _ in self._parts.inventory.looks():
            statuses.looked()

    async def _follow_claims(self, ledger: Ledger, watches: ClaimWatches, statuses: ClaimStatuses) -> None:
        """Some time after a change, since the kubelet's state tells of a pod that joins meanwhile: a prepare isn't held
        up by the watch, and a claim that is short-lived costs none."""
        while True:
            await self._claims_changed.wait()
            await self._parts.clock.sleep(FOLLOW_SECONDS)
            self._claims_changed.clear()
            try:
                records = await ledger.claims()
                draining = await ledger.draining()
            except BaseException:
                self._claims_changed.set()
                raise
            statuses.follow(records, {hold.device.uuid for hold in draining})
            watches.follow(frozenset(ClaimRef(row.uid, row.namespace, row.name) for row in records))


async def _observe_kubelet(manager: ClaimManager, watch: FileWatch) -> None:
    while True:
        await watch.changed.wait()
        watch.changed.clear()
        try:
            await manager.observe_kubelet()
        except BaseException:
            watch.changed.set()
            raise
