"""The claim route's server of one instance, put together and started and stopped in order.

Start: DRA server, watchdog (an instance that isn't active may be the one that the kubelet calls), standby's looks,
registration (the kubelet may call as soon as it has seen the registration socket). Stop, each step bounded:

1. calls in flight get a moment to finish;
2. this instance stops being active and says so in the lease: waits end, effects are finished, a standby takes over;
3. if the kubelet calls this instance, another one is asked to register anew, so that it is called instead;
4. calls still open are passed to the new active instance, or answered with the reason when there is none;
5. streams end, or the server would wait for them;
6. the registration socket goes: not before, since the kubelet closes its connection to an instance that it forgets,
   and with it breaks off the calls that are open there;
7. the DRA server stops and its socket goes.

ResourceSlices are never deleted here: pods keep their devices, and the next instance finds the slices as they are.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import grpc.aio

from kubeletplugin import crashpoints
from kubeletplugin.clock import Clock
from kubeletplugin.dra import health, instance, services
from kubeletplugin.dra.calls import CallRunner
from kubeletplugin.dra.health import HealthGate, HealthSource, HealthStreams
from kubeletplugin.dra.housekeeping import Housekeeper, HousekeepingTiming
from kubeletplugin.dra.instance import GrpcPeers, InstanceService, Peers
from kubeletplugin.dra.newest import NewestKeeper, NewestTiming
from kubeletplugin.dra.registrar import Registrar, RegistrarTiming
from kubeletplugin.dra.router import FreshHandler, RelayedHandler
from kubeletplugin.dra.sockets import SocketPaths, is_socket
from kubeletplugin.dra.takeover import ActiveWork, State, TakeOver, TakeOverTiming
from kubeletplugin.errors import FatalError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.stale import StaleDetector, StaleTiming
from kubeletplugin.lease.watchdog import Watchdog, WatchdogTiming
from kubeletplugin.prepare.model import ClaimHandler

log = logging.getLogger(__name__)


SOCKET_LOOK = 5.0
"""Seconds between two looks at the DRA socket."""


@dataclass(frozen=True, slots=True)
class DraTiming:
    """Seconds; the defaults are meant for every node."""

    takeover: TakeOverTiming = field(default_factory=TakeOverTiming)
    stale: StaleTiming = field(default_factory=StaleTiming)
    registrar: RegistrarTiming = field(default_factory=RegistrarTiming)
    housekeeping: HousekeepingTiming = field(default_factory=HousekeepingTiming)
    newest: NewestTiming = field(default_factory=NewestTiming)
    watchdog: WatchdogTiming = field(default_factory=WatchdogTiming)
    finish_calls: float = 5.0
    pass_on_calls: float = 5.0


@dataclass(frozen=True, slots=True)
class DraStatus:
    """What readiness, status and metrics show. ``refusal`` is the kubelet's text, ``failure`` why a take-over failed;
    both empty when all is well."""

    registered: bool
    refusal: str
    state: State
    epoch: int | None
    failure: str


class DraPlugin:
    """``fatal`` is done when the process can't go on; its exception says why."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        lease: Lease,
        handler: ClaimHandler,
        work: ActiveWork,
        health_source: HealthSource,
        *,
        clock: Clock,
        timing: DraTiming | None = None,
        peers: Peers | None = None,
        watchdog: Watchdog | None = None,
        on_change: Callable[[DraStatus], None] = lambda _: None,
        watch_calls: Callable[[ClaimHandler], ClaimHandler] = lambda handler: handler,
    ) -> None:
        """``watch_calls`` gets the handler of the kubelet's own calls, and returns one that is called in its place."""
        self._timing = timing or DraTiming()
        self._paths = paths
        self._lease = lease
        self._clock = clock
        self._on_change = on_change
        self._peers = peers or GrpcPeers(lease.instance)
        self._gate = HealthGate()
        self._watchdog = watchdog or Watchdog(clock, self._timing.watchdog)
        self._runner = CallRunner(clock)
        self._registered = False
        self._refusal = ""
        self._server: grpc.aio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._takeover = TakeOver(
            lease,
            work,
            self._peers,
            StaleDetector(clock, self._timing.stale),
            clock=clock,
            on_state=self._state_changed,
            on_fatal=self._fail,
            timing=self._timing.takeover,
        )
        self._housekeeper = Housekeeper(
            driver, paths, self._peers, self._gate.resend, clock=clock, timing=self._timing.housekeeping
        )
        self._registrar = Registrar(driver, paths, self, clock=clock, timing=self._timing.registrar)
        self._newest = NewestKeeper(
            driver, paths, self._peers, self._become_newest, clock=clock, timing=self._timing.newest
        )
        self._calls = services.ClaimCalls(
            self._runner,
            watch_calls(FreshHandler(handler, self._takeover, lease, self._peers, clock)),
            RelayedHandler(handler, self._takeover, clock),
        )
        self._streams = HealthStreams(health_source, self._gate, clock)

    @property
    def status(self) -> DraStatus:
        return DraStatus(
            self._registered,
            self._refusal,
            self._takeover.state,
            self._lease.epoch,
            self._takeover.blocked or self._takeover.failure,
        )

    def begin_anew(self, reason: str) -> None:
        """See TakeOver.begin_anew."""
        self._takeover.begin_anew(reason)

    async def start(self) -> None:
        """Returns when the registration socket is there; FatalError names what is missing."""
        folder = self._paths.dra.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FatalError(f"create the plugin folder {folder}: {error.strerror}") from error
        self._server = grpc.aio.server()
        services.add_to_server(self._server, self._calls)
        health.add_to_server(self._server, self._streams)
        instance.add_to_server(self._server, InstanceService(self._takeover.give_up, self._register_anew, self._gate))
        try:
            self._server.add_insecure_port(self._paths.dra_target)
        except RuntimeError as error:
            raise FatalError(f"bind the DRA socket {self._paths.dra}: is the folder writable?") from error
        await self._server.start()
        self._watchdog.start()
        self._spawn("take-over looks", self._takeover.run())
        self._spawn("socket watch", self._watch_socket())
        crashpoints.reached("start.served")
        await self._registrar.start()

    async def stop(self) -> None:
        """See the module's text for the order."""
        await self._runner.drain(self._timing.finish_calls)
        await self._takeover.stop()
        crashpoints.reached("stop.yielded")
        await self._newest.hand_over()
        await self._runner.drain(self._timing.pass_on_calls)
        await self._runner.cancel()
        self._gate.end()
        await self._registrar.stop()
        crashpoints.reached("stop.unregistered")
        self._registered = False
        self._housekeeper.stop()
        self._newest.stop()
        self._watchdog.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace=0.5)
            self._server = None
        with contextlib.suppress(FileNotFoundError):
            self._paths.dra.unlink()
        self._on_change(self.status)

    def on_registered(self) -> None:
        self._registered, self._refusal = True, ""
        crashpoints.reached("register.confirmed")
        self._takeover.registered()
        self._on_change(self.status)

    def on_refused(self, error: str) -> None:
        self._registered, self._refusal = False, error
        self._on_change(self.status)

    def on_unpublished(self) -> None:
        self._registered = False
        self._on_change(self.status)

    def _state_changed(self, state: State) -> None:
        active = state is State.ACTIVE
        self._gate.set_active(active)
        if active:
            self._housekeeper.start()
            self._newest.start(self._takeover.passed_over)
        else:
            self._housekeeper.stop()
            self._newest.stop()
        self._on_change(self.status)

    async def _become_newest(self) -> None:
        """Calls that are open here get a moment first, as at a stop."""
        await self._runner.drain(self._timing.finish_calls)
        await self._registrar.renew()

    async def _register_anew(self, asker: str) -> bool:
        if self._takeover.state is State.STOPPED:
            return False
        log.info("register anew for one that ends", extra={"instance": asker})
        await self._become_newest()
        return True

    async def _watch_socket(self) -> None:
        """The kubelet can't connect again without the DRA socket, and a server can't bind anew: begin as a whole."""
        while is_socket(self._paths.dra):
            await self._clock.sleep(SOCKET_LOOK)
        self._fail(FatalError(f"serve the kubelet: the DRA socket {self._paths.dra} was removed by somebody else"))

    def _fail(self, error: FatalError) -> None:
        if not self.fatal.done():
            self.fatal.set_exception(error)

    def _spawn(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An instance without one of its loops looks well and isn't: end the process, so that it is started anew."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a loop of the claim route's server ended", extra={"loop": task.get_name()}, exc_info=error)
            self._fail(FatalError(f"go on serving claims: {task.get_name()} ended, the log says why"))
