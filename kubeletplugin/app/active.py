"""All that only the active instance does: made at its take-over, ended when it yields.

Order at the take-over: ledger, leftovers of dead instances, names, the driver's CDI file, recovery of claims; then
slices and the standing work. The ledger is closed at an orderly end only: an instance that lost the lease leaves the
file alone, since a close would checkpoint beside the new holder.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubeapi.client import Json, KubeApi
from kubeletplugin import crashpoints
from kubeletplugin.app.cdi_folder import CdiFolder
from kubeletplugin.app.cdi_watch import SpecKeeper
from kubeletplugin.app.claim_status import ClaimStatuses
from kubeletplugin.app.claim_watch import ClaimWatches, ReadClaims
from kubeletplugin.app.classic_watch import ClassicWatch
from kubeletplugin.app.file_watch import FileWatch
from kubeletplugin.app.hardware import SYS, Hardware, NvmlDevicePids
from kubeletplugin.app.ledger_file import LedgerFile
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.view import LedgerView
from kubeletplugin.app.notices import NodeNotices
from kubeletplugin.app.pods import NodePods, PodRecord
from kubeletplugin.app.settings import Settings
from kubeletplugin.app.specs import HostSpecs
from kubeletplugin.app.waking.waker import Waker
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.watcher import InventoryService
from kubeletplugin.lease.lease import Lease
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.nvml.worker import NvmlWorkers
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.by_hand import Draining
from kubeletplugin.prepare.kubelet_state import KubeletStateFile
from kubeletplugin.prepare.manager import ClaimManager
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.processes import PodCgroups, PodProcesses
from kubeletplugin.slices.controller import SliceController
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.db"
CDI_PREFIX = "k8s.gpu.nvidia.com-"
RESTART_SECONDS = 5.0
SOUND_SECONDS = 60.0
"""Work that went well for so long fails for a reason of its own."""
FOLLOW_SECONDS = 1.0
FIRST_LOOK_SECONDS = 5.0
"""How long a take-over waits for a look under bound names; without one it goes on with what is known."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What lives as long as the process, active or not."""

    settings: Settings
    hardware: Hardware
    workers: NvmlWorkers
    inventory: InventoryService
    api: KubeApi
    lease: Lease
    slices: SliceController
    pods: NodePods
    notices: NodeNotices
    clock: Clock
    metrics: Metrics


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
        self._waker: Waker | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._troubles = Troubles(log)
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
        """For `gpuclaim release`; implements app.release.Releases."""
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
        writer = SpecWriter(
            parts.settings.cdi_dir,
            parts.lease,
            prefix=CDI_PREFIX,
            instance=parts.lease.instance,
            epoch=lambda: parts.lease.epoch,
        )
        await asyncio.to_thread(writer.remove_leftovers)
        crashpoints.reached("takeover.cleaned")
        specs = await asyncio.to_thread(HostSpecs, writer, parts.hardware)
        settings = parts.settings
        self._folder = folder = CdiFolder(specs, settings.cdi_dir, settings.host_root, parts.notices, self._troubles)
        parts.inventory.use_bindings(ledger)
        bound = asyncio.create_task(self._look_under_bindings(), name="look under bound names")
        self._tasks.append(bound)
        await asyncio.wait([bound], timeout=FIRST_LOOK_SECONDS)
        if bound.done() and parts.inventory.current is not None:
            await folder.refresh(parts.inventory.current.driver_version)
        inventory = self._inventory(bound)
        classic = self._new_classic_watch()
        self._offered = lambda: classic.withhold(inventory())
        read = ReadClaims(parts.api)
        self._manager = manager = self._new_manager(read, ledger, specs, self._offered)
        parts.notices.take_up(await ledger.told())
        statuses = ClaimStatuses(parts.api, parts.settings.node_name, parts.clock, inventory)

        def observe(claim: Json) -> None:
            manager.observe_claim(claim)
            statuses.observe(claim)

        self._watches = watches = ClaimWatches(parts.api, parts.clock, observe, statuses.gone, read)
        await manager.recover()
        crashpoints.reached("takeover.recovered")
        watch = FileWatch(KubeletStateFile(parts.settings.kubelet_root_dir).path)
        self._start("sweep", manager.run)
        self._start("keep the ledger's file", lambda: self._file.keep(ledger))
        self._start("watch the node's pods", parts.pods.run)
        if parts.settings.wake_pods:
            self._waker = waker = self._new_waker(manager)
            self._start("wake pods", waker.run)
        self._start("follow other device plugins", classic.run)
        self._start("publish the inventory", lambda: self._publish(ledger, manager, bound, classic))
        self._start("withhold what others have", lambda: self._follow_classic(ledger, manager, inventory, classic))
        self._start("keep the CDI folder", lambda: folder.run(parts.inventory))
        keeper = SpecKeeper(writer.folder, CDI_PREFIX, specs, manager.mend_files, parts.notices, parts.clock)
        self._start("put back CDI files", keeper.run)
        self._start("watch the kubelet's state", watch.run)
        self._start("read the kubelet's state", lambda: _observe_kubelet(manager, watch))
        self._claims_changed.set()
        self._start("follow claims", lambda: self._follow_claims(ledger, watches, statuses))
        self._start("write claims' status", statuses.run)
        self._start("tell claims of the hardware", lambda: self._tell_looks(statuses))
        parts.slices.start()

    async def deactivate(self) -> None:
        """Slices first: claims have a fence should this hang and another instance go on without waiting; they don't."""
        parts = self._parts
        await parts.slices.stop()
        if self._manager is not None:
            await self._manager.yield_()
            crashpoints.reached("yield.quiet")
            self._manager = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._watches is not None:
            await self._watches.stop()
        self._waker = None
        parts.inventory.use_bindings(None)
        ledger, self._ledger = self._ledger, None
        if ledger is not None and not await self._lost():
            await ledger.close()
            crashpoints.reached("yield.closed")

    async def _lost(self) -> bool:
        """Whether another instance is active for sure; a lease that can't be read says nothing."""
        try:
            return await asyncio.to_thread(self._parts.lease.lost)
        except RecoverableError:
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

    def _processes(self) -> PodProcesses:
        parts = self._parts
        host = parts.settings.host_root
        cgroups = PodCgroups(host / str(SYS / "fs" / "cgroup").lstrip("/"), host / "proc")
        return PodProcesses(cgroups, NvmlDevicePids(parts.hardware.nvml, parts.workers))

    def _new_classic_watch(self) -> ClassicWatch:
        parts = self._parts
        settings = parts.settings

        def claim_pods(uid: str, pods: frozenset[str]) -> None:
            if self._manager is not None:
                self._manager.observe_pods(uid, pods)

        return ClassicWatch.of_kubelet(
            settings.kubelet_root_dir, self._processes(), parts.pods, settings.pod_uid, parts.clock, claim_pods
        )

    def _new_manager(
        self, read: ReadClaims, ledger: Ledger, specs: HostSpecs, inventory: Callable[[], Inventory]
    ) -> ClaimManager:
        parts = self._parts
        return ClaimManager(
            api=read,
            ledger=ledger,
            specs=specs,
            inventory=inventory,
            pool_name=parts.settings.node_name,
            boot_id=parts.lease.boot_id,
            fence=parts.lease,
            processes=self._processes(),
            kubelet_state=KubeletStateFile(parts.settings.kubelet_root_dir),
            clock=parts.clock,
            notices=parts.notices,
            lost=parts.lease.lost,
            on_claims_changed=self._claims_have_changed,
        )

    def _new_waker(self, manager: ClaimManager) -> Waker:
        parts = self._parts
        kubelet = KubeletStateFile(parts.settings.kubelet_root_dir)
        return Waker(parts.api, parts.pods, manager.prospects, kubelet.read, parts.metrics, parts.clock)

    def _claims_have_changed(self) -> None:
        self._claims_changed.set()
        if self._waker is not None:
            self._waker.way_may_be_clear()

    # --- standing work ---
    async def _publish(
        self, ledger: Ledger, manager: ClaimManager, bound: asyncio.Task[None], classic: ClassicWatch
    ) -> None:
        parts = self._parts
        await asyncio.wait([bound])
        looked = asyncio.ensure_future(classic.looked.wait())
        await wait_for_any(parts.clock, looked, FIRST_LOOK_SECONDS, cancel=True)
        async for inventory in parts.inventory.changes():
            parts.notices.inventory_changed(inventory)
            self._offer(manager, inventory, classic)
            await self._note_told(ledger)

    async def _note_told(self, ledger: Ledger) -> None:
        try:
            await ledger.set_told(self._parts.notices.told)
        except RecoverableError as error:
            log.warning("note what was told of devices: %s", error)

    def _offer(self, manager: ClaimManager, looked: Inventory, classic: ClassicWatch) -> None:
        """A device with a problem is kept for who has it, and offered to nobody."""
        if classic.looked.is_set():
            self._parts.notices.classic_changed(classic.taken(looked))
        inventory = classic.withhold(looked)
        offered = tuple(device for device in inventory.devices if not device.problem)
        self._parts.slices.set_devices(replace(inventory, devices=offered))
        manager.inventory_changed()
        if self._waker is not None:
            self._waker.way_may_be_clear()

    async def _follow_classic(
        self, ledger: Ledger, manager: ClaimManager, inventory: Callable[[], Inventory], classic: ClassicWatch
    ) -> None:
        while True:
            await classic.changed.wait()
            classic.changed.clear()
            looked = inventory()
            if looked.driver_version:
                self._offer(manager, looked, classic)
                await self._note_told(ledger)

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

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(asyncio.create_task(self._standing(name, work), name=name))

    async def _standing(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Work that ends by cancellation, or with the lease. A failure that nobody foresaw is shown and begun anew: an
        agent without this work must not look well, nor end for it."""
        clock = self._parts.clock
        while True:
            begun = clock.monotonic()
            try:
                await work()
            except NotActiveError:
                if await self._lost():
                    return
                log.warning("%s: the lease was busy, beginning anew in %g s", name, RESTART_SECONDS)
            except Exception as error:
                if clock.monotonic() - begun >= SOUND_SECONDS:
                    self._troubles.forget(name)
                self._troubles.failed(name, error)
            await self._parts.clock.sleep(RESTART_SECONDS)


async def _observe_kubelet(manager: ClaimManager, watch: FileWatch) -> None:
    while True:
        await watch.changed.wait()
        watch.changed.clear()
        try:
            await manager.observe_kubelet()
        except BaseException:
            watch.changed.set()
            raise
