"""One instance of the node agent, put together, started and stopped in order.

Start: the hardware (or its back-off), slices accepted by a dry run, a ledger that this version may write, registration
with the kubelet, take-over. While another instance serves, this one waits for as long as it takes: a version that can't
start never gets a call. While nobody serves, it goes on after a first failure, because claims must be unprepared on a
node whose driver is broken.
"""

import asyncio
import contextlib
import gc
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from deviceclasses.names import DRIVER_NAME
from kubeapi.client import KubeApi
from kubeapi.complaints import Complaints
from kubeapi.errors import ApiError, ConfigError
from kubeapi.events import EventRecorder
from kubeapi.rest import connect
from kubeletplugin import crashpoints
from kubeletplugin.app.active import LEDGER_FILE, ActiveNode
from kubeletplugin.app.ends import control, release_routes
from kubeletplugin.app.ends.http import HttpEnd
from kubeletplugin.app.host.hardware import Hardware, check_machine, open_hardware
from kubeletplugin.app.metrics.api import CountedApi
from kubeletplugin.app.metrics.calls import CountedCalls
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.nvml import counted
from kubeletplugin.app.metrics.scrape import Scraper
from kubeletplugin.app.metrics.view import AgentView
from kubeletplugin.app.parts import Parts
from kubeletplugin.app.settings import Settings
from kubeletplugin.app.tell.health_source import LookReports
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.app.watch.pods import NodePods
from kubeletplugin.cdi.hostnodes import find_dev_root
from kubeletplugin.clock import Clock, SystemClock
from kubeletplugin.dra.plugin import DraPlugin, DraStatus
from kubeletplugin.dra.sockets import choose_paths
from kubeletplugin.dra.takeover import State
from kubeletplugin.errors import FatalError
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.nodes import DeviceNodeKeeper, NodePlace
from kubeletplugin.inventory.probe import InventoryProber
from kubeletplugin.inventory.session import NvmlSession
from kubeletplugin.inventory.watcher import InventoryService
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.processes import HostProcesses
from kubeletplugin.ledger.files import check_usable
from kubeletplugin.nvml.worker import NvmlWorkers
from kubeletplugin.slices.controller import SliceController
from kubeletplugin.slices.validate import pool_name_problem

log = logging.getLogger(__name__)

LEASE_FILE = "lease"
FIRST_LOOK_SECONDS = 15.0
"""How long the hardware is waited for while nobody else serves."""
RETRY_SECONDS = 5.0
LAST_CALLS_SECONDS = 0.5
"""How long NVML calls that are being made at the end may take; one that hangs is left behind."""


class Agent:
    """``run`` until ``stop``. FatalError ends it with a reason."""

    def __init__(
        self, settings: Settings, clock: Clock | None = None, exclusions: Callable[[], Sequence[Exclusion]] = tuple
    ) -> None:
        """``exclusions`` is asked at every look at the hardware."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._exclusions = exclusions
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._uid = settings.pod_uid or str(uuid.uuid4())
        self._started = False
        self._broken = ""
        self._unmade = "starting"
        self._metrics = Metrics()
        self._scraper = Scraper(self._metrics, self._clock)

    def stop(self) -> None:
        """Ends ``run`` in order; it may be called before, or more than once."""
        self._stop.set()

    async def run(self) -> None:
        """HTTP comes before whatever is waited for and goes last, so that no livenessProbe ends an agent that waits."""
        await self._check_settings()
        if endpoint := self._settings.http_endpoint:
            self._spawn(HttpEnd(endpoint, self._unready, self._scraper.scrape, self._clock).run(), "HTTP")
        try:
            parts = await self._unless_stopped(self._make_parts())
            if parts is not None:
                await self._run(parts)
        finally:
            await self._cancel_tasks()

    async def _run(self, parts: Parts) -> None:
        self._health = LookReports(self._settings.node_name, self._clock)
        self._active = ActiveNode(parts)
        self._parts = parts
        self._plugin = self._make_plugin(parts)
        self._active.begin_anew = self._plugin.begin_anew
        path = control.socket_path(self._settings.plugin_dir, DRIVER_NAME, self._uid)
        self._scraper.follow(self._view, self._active.view, parts.pods.get)
        self._unmade = ""
        more = release_routes.routes(self._active, self._settings.host_root / "proc")
        server = control.ControlServer(path, self._status, self._unready, self._scraper.scrape, more)
        self._spawn(parts.inventory.run(), "inventory")
        self._spawn(self._feed_health(parts.inventory), "health")
        self._spawn(self._recorder.run(), "events")
        await server.start()
        starting = asyncio.create_task(self._start(parts), name="start")
        stopping = asyncio.create_task(self._stopped(), name="stop")
        try:
            fatal: asyncio.Future[None] = self._plugin.fatal
            await asyncio.wait([starting, stopping, fatal], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asyncio.wait([stopping, fatal], return_when=asyncio.FIRST_COMPLETED)
            if fatal.done():
                fatal.result()
            if self._broken:
                raise FatalError(self._broken)
        finally:
            await self._end(parts, server, starting, stopping)

    async def _check_settings(self) -> None:
        """What no waiting would mend. FatalError."""
        settings = self._settings
        if not settings.node_name:
            raise FatalError("name the node: give --node-name (in a pod: spec.nodeName by the downward API)")
        problem = pool_name_problem(settings.node_name)
        if problem:
            raise FatalError(f"name the node {settings.node_name!r}: {problem}")
        await asyncio.to_thread(check_machine, settings)

    # --- making ---
    async def _make_parts(self) -> Parts:
        settings, clock = self._settings, self._clock
        api = CountedApi(await self._connect(), self._metrics)
        await self._wait_for_kubelet()
        hardware = await asyncio.to_thread(open_hardware, settings)
        hardware = replace(hardware, nvml=counted(hardware.nvml, self._metrics))
        workers = NvmlWorkers(
            settings.nvml_timeout, on_timeout=lambda key: self._metrics.nvml_timed_out(prober.gpu_of(key))
        )
        prober = InventoryProber(hardware.nvml, workers, hardware.around, node_name=settings.node_name)
        keeper = DeviceNodeKeeper(lambda: _node_place(hardware), hardware.proc)
        inventory = InventoryService(
            prober,
            NvmlSession(hardware.nvml, workers, clock),
            clock,
            exclusions=self._exclusions,
            ensure_nodes=None if settings.machine else keeper.ensure,
            rescan_seconds=settings.rescan_interval,
        )
        self._recorder = EventRecorder(api, controller=DRIVER_NAME, instance=settings.node_name, clock=clock)
        pods = NodePods(api, clock, settings.node_name)
        notices = NodeNotices(self._recorder, settings.node_name, pods.get, self._metrics)
        boot_id = await asyncio.to_thread(hardware.boot_id)
        self._paths = choose_paths(settings.registry_dir, settings.plugin_dir, DRIVER_NAME, self._uid)
        lease = Lease(
            settings.plugin_dir / LEASE_FILE,
            self._uid,
            boot_id,
            str(self._paths.dra),
            clock=clock,
            processes=HostProcesses(),
        )
        slices = SliceController(api, settings.node_name, DRIVER_NAME, clock, notices)
        return Parts(settings, hardware, workers, inventory, api, lease, slices, pods, notices, clock, self._metrics)

    def _make_plugin(self, parts: Parts) -> DraPlugin:
        return DraPlugin(
            DRIVER_NAME,
            self._paths,
            parts.lease,
            self._active,
            self._active,
            self._health,
            clock=self._clock,
            on_change=self._dra_changed,
            watch_calls=lambda handler: CountedCalls(handler, self._metrics, self._clock),
        )

    async def _wait_for_kubelet(self) -> None:
        registry = self._settings.registry_dir
        if not await asyncio.to_thread(registry.is_dir):
            log.warning(
                "wait for the kubelet: there is no folder %s; is --kubelet-root-dir the kubelet's --root-dir,"
                " and mounted into the agent's pod at the same path?",
                registry,
            )
            self._unmade = f"the kubelet's folder {registry} isn't there"
        while not await asyncio.to_thread(registry.is_dir):
            await self._clock.sleep(1.0)
        folder = self._settings.plugin_dir
        try:
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise FatalError(f"make the plugin's folder {folder}: {error.strerror}; is it mounted writable?") from error

    async def _connect(self) -> KubeApi:
        try:
            return await connect(self._settings.kubeconfig or None)
        except ConfigError as error:
            raise FatalError(str(error)) from error

    # --- starting ---
    async def _start(self, parts: Parts) -> None:
        inventory = await self._first_look(parts)
        if inventory is not None:
            await self._dry_run(parts, inventory)
        parts.lease.know(await asyncio.to_thread(check_usable, self._settings.plugin_dir / LEDGER_FILE))
        crashpoints.reached("start.accepted")
        await self._plugin.start()
        self._started = True
        # What was imported lives as long as the process; walking it again and again made up most of a slow prepare
        # (p99 at 200 held claims: 65 ms with, 27 without).
        gc.collect()
        gc.freeze()

    async def _first_look(self, parts: Parts) -> Inventory | None:
        waited = 0.0
        while parts.inventory.current is None:
            if waited >= FIRST_LOOK_SECONDS and not self._others_serve(parts):
                log.warning("go on without GPUs: %s", parts.inventory.problem or "the driver hasn't answered yet")
                return None
            await self._clock.sleep(0.05)
            waited += 0.05
        return parts.inventory.current

    async def _dry_run(self, parts: Parts, inventory: Inventory) -> None:
        complaints = Complaints(log, "try the node's slices without writing them")
        while True:
            try:
                await parts.slices.dry_run(inventory)
                return
            except ApiError as error:
                complaints.failed(error, RETRY_SECONDS)
                if not self._others_serve(parts):
                    return
            await self._clock.sleep(RETRY_SECONDS)

    def _others_serve(self, parts: Parts) -> bool:
        record = parts.lease.read().record
        return not parts.lease.is_void(record) and not parts.lease.is_ours(record)

    # --- standing ---
    async def _feed_health(self, inventory: InventoryService) -> None:
        async for look in inventory.looks():
            self._health.looked(look)

    def _dra_changed(self, status: DraStatus) -> None:
        if status.refusal:
            log.error("the kubelet refuses the registration: %s", status.refusal)
        log.info("registered: %s, %s, epoch %s", status.registered, status.state.value, status.epoch)

    def _unready(self) -> str:
        if self._unmade:
            return self._unmade
        if not self._started:
            return self._parts.inventory.problem or "starting"
        status = self._plugin.status
        if not status.registered:
            return status.refusal or "the kubelet hasn't registered this instance yet"
        if status.state is not State.ACTIVE:
            return status.failure or f"not the active instance: {status.state.value}"
        if status.failure:
            return status.failure
        return "" if self._parts.slices.accepted else "the API server doesn't hold the node's slices yet"

    def _view(self) -> AgentView:
        status = self._plugin.status
        return AgentView(
            instance=self._uid,
            node=self._settings.node_name,
            ready=not self._unready(),
            registered=status.registered,
            epoch=status.epoch if status.state is State.ACTIVE else None,
            slices_accepted=self._parts.slices.accepted,
            inventory=self._parts.inventory.current,
            offered=self._active.inventory,
            events_written=self._recorder.written,
            events_dropped=self._recorder.dropped,
        )

    async def _status(self) -> dict[str, Any]:
        status = self._plugin.status
        node = await self._active.status() or {}
        current = self._parts.inventory.current
        return {
            "instance": self._uid,
            "node": self._settings.node_name,
            "state": status.state.value,
            "epoch": status.epoch,
            "ready": self._unready() or True,
            "driverVersion": current.driver_version if current else "",
            "problem": self._parts.inventory.problem,
            **node,
        }

    # --- ending ---
    async def _end(
        self, parts: Parts, server: control.ControlServer, starting: asyncio.Task[None], stopping: asyncio.Task[None]
    ) -> None:
        log.info("stopping; slices and prepared claims stay as they are")
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await self._plugin.stop()
        await server.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._recorder.flush(), 1.0)
        await self._cancel_tasks()
        parts.workers.close()
        await asyncio.to_thread(parts.workers.join, LAST_CALLS_SECONDS)
        await parts.api.close()

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _unless_stopped(self, work: Coroutine[Any, Any, Parts]) -> Parts | None:
        """The outcome of ``work``, or None when the stop came first."""
        task, stopping = asyncio.create_task(work), asyncio.create_task(self._stopped())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    async def _stopped(self) -> None:
        await self._stop.wait()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nothing that stands may end by itself: an agent without it must not look well."""
        if not task.cancelled():
            log.error("%s ended", task.get_name(), exc_info=task.exception())
            self._broken = f"go on without {task.get_name()}: it ended, see above"
            self._stop.set()


def _node_place(hardware: Hardware) -> NodePlace:
    """The same as what claims get their nodes from (app.files.cdi_specs)."""
    dev = find_dev_root(hardware.locate_driver() or hardware.host, hardware.host)
    return NodePlace(dev.seen("/dev"), dev.host_path("/dev"), hardware.host.seen("/dev"))
