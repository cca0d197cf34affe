"""One node with a fake kubelet and any number of instances of the claim route's server, all with real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuclaim.demo.kubelet import FakeKubelet, PodClaim
from gpuclaim.demo.kubelet_plugins import KubeletTiming
from kubeletplugin.clock import SystemClock
from kubeletplugin.dra.health import DeviceState, DeviceStatus, HealthReport
from kubeletplugin.dra.housekeeping import HousekeepingTiming
from kubeletplugin.dra.newest import NewestTiming
from kubeletplugin.dra.plugin import DraPlugin, DraTiming
from kubeletplugin.dra.registrar import RegistrarTiming
from kubeletplugin.dra.sockets import SocketPaths, choose_paths, plugin_dir, registry_dir
from kubeletplugin.dra.takeover import State, TakeOverTiming
from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.lease import Lease, LeaseTiming
from kubeletplugin.lease.processes import HostProcesses
from kubeletplugin.lease.stale import StaleTiming
from kubeletplugin.lease.watchdog import WatchdogTiming
from kubeletplugin.prepare.model import ClaimRef, PreparedDevice, PrepareResult

DRIVER = "gpu.nvidia.com"
BOOT = "boot-1"
SHORT = DraTiming(
    takeover=TakeOverTiming(look=0.02, yield_bound=0.3, retry_after=0.05),
    stale=StaleTiming(looks=4, interval=0.02, pause=1.0),
    registrar=RegistrarTiming(look=0.02, silence=5.0, first_retry=0.02, last_retry=0.05),
    housekeeping=HousekeepingTiming(look=0.02, settle=0.02),
    newest=NewestTiming(look=0.02, answer=0.5, misses=3),
    watchdog=WatchdogTiming(interval=0.5, misses=10),
    finish_calls=0.3,
    pass_on_calls=0.5,
)
PATIENT = replace(
    SHORT,
    takeover=TakeOverTiming(look=0.05, yield_bound=0.3, retry_after=0.05),
    stale=StaleTiming(looks=12, interval=0.05, pause=3.0),
    newest=NewestTiming(look=0.1, answer=1.0, misses=3),
)
PROCESS_LEASE = LeaseTiming(lock_wait=0.1, kill_wait=5.0)
KUBELET = KubeletTiming(look=0.01, health_retry=0.03)


def claim(number: int, driver: str = DRIVER) -> PodClaim:
    return PodClaim(f"uid-{number}", "default", f"claim-{number}", (driver,))


def device_for(ref: ClaimRef, share_id: str | None = None) -> PreparedDevice:
    return PreparedDevice(("gpu",), "node-1", "gpu-0", (f"k8s.gpu.nvidia.com/claim={ref.uid}-gpu-0",), share_id)


class Handler:
    """A ClaimHandler that answers at once, unless ``gate`` is closed or ``answer`` is replaced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self.finished: list[str] = []
        self.deadlines: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.stop_waits = asyncio.Event()
        self.answer: Callable[[Sequence[ClaimRef]], Mapping[str, PrepareResult]] = self.succeed

    def succeed(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareResult]:
        return {ref.uid: PrepareResult((device_for(ref),)) for ref in claims}

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        self.prepared += [ref.uid for ref in claims]
        self.deadlines.append(deadline)
        await self._pass_gate()
        self.finished += [ref.uid for ref in claims]
        return self.answer(claims)

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        self.unprepared += [ref.uid for ref in claims]
        await self._pass_gate()
        return {ref.uid: "" for ref in claims}

    async def _pass_gate(self) -> None:
        self.called.set()
        waits = (asyncio.ensure_future(self.gate.wait()), asyncio.ensure_future(self.stop_waits.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not self.gate.is_set():
                raise NotActiveError("this instance yields")
        finally:
            for wait in waits:
                wait.cancel()


class Work:
    """The active instance's work: stops the handler's waits on yielding, as prepare does."""

    def __init__(self, handler: Handler, journal: list[str]) -> None:
        self._handler = handler
        self._journal = journal
        self.failure: Exception | None = None
        self.ready = asyncio.Event()
        self.ready.set()

    async def activate(self, epoch: int) -> None:
        self._journal.append(f"{self._handler.name} activates")
        await self.ready.wait()
        if self.failure is not None:
            raise self.failure
        self._handler.stop_waits.clear()

    async def deactivate(self) -> None:
        self._handler.stop_waits.set()
        self._journal.append(f"{self._handler.name} deactivates")


class Source:
    """A prober that looks when a test says so."""

    def __init__(self) -> None:
        self._report: HealthReport | None = None
        self._news = asyncio.Event()

    def look(self, *statuses: DeviceStatus, at: float | None = None, lease: int = 30) -> None:
        cycle = self._report.cycle + 1 if self._report is not None else 1
        made_at = SystemClock().monotonic() if at is None else at
        self._report = HealthReport(cycle, statuses, made_at, lease)
        self._news.set()
        self._news = asyncio.Event()

    async def next_report(self, after: int) -> HealthReport:
        while self._report is None or self._report.cycle <= after:
            await self._news.wait()
        return self._report


def status(device: str, state: DeviceState = DeviceState.HEALTHY, message: str = "") -> DeviceStatus:
    return DeviceStatus("node-1", device, state, message, last_updated=1_700_000_000)


@dataclass
class Agent:
    """One instance."""

    name: str
    paths: SocketPaths
    lease: Lease
    handler: Handler
    work: Work
    source: Source
    plugin: DraPlugin

    @property
    def active(self) -> bool:
        return self.plugin.status.state is State.ACTIVE


@dataclass
class Node:
    root: Path
    kubelet: FakeKubelet
    timing: DraTiming = SHORT
    agents: list[Agent] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    wiped: list[str | None] = field(default_factory=list)

    def make(self, name: str, *, lease_timing: LeaseTiming | None = None) -> Agent:
        registry, folder = registry_dir(self.root), plugin_dir(self.root, DRIVER)
        folder.mkdir(parents=True, exist_ok=True)
        paths = choose_paths(registry, folder, DRIVER, name)
        clock = SystemClock()
        lease = Lease(
            folder / "lease", name, BOOT, str(paths.dra), clock=clock, processes=HostProcesses(), timing=lease_timing
        )
        handler = Handler(name)
        work, source = Work(handler, self.journal), Source()
        plugin = DraPlugin(DRIVER, paths, lease, handler, work, source, clock=clock, timing=self.timing)
        agent = Agent(name, paths, lease, handler, work, source, plugin)
        self.agents.append(agent)
        return agent

    async def start(self, name: str) -> Agent:
        """A new instance that is registered, connected and active."""
        agent = self.make(name)
        await agent.plugin.start()
        await self.until(lambda: agent.active and self.connected(agent))
        return agent

    def connected(self, agent: Agent) -> bool:
        chosen = self.kubelet.plugins.choose(DRIVER)
        return chosen is not None and chosen.connected and chosen.endpoint == str(agent.paths.dra)

    async def stop(self, agent: Agent) -> None:
        self.agents.remove(agent)
        await agent.plugin.stop()

    async def until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        await until(condition, seconds)


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for something that other tasks bring about; the bound only ends a test that has failed."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is another program's doing
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running_node(root: Path, timing: DraTiming = SHORT, kubelet: KubeletTiming = KUBELET) -> AsyncIterator[Node]:
    wiped: list[str | None] = []

    async def wipe(driver: str | None) -> None:
        wiped.append(driver)

    fake = FakeKubelet(root, timing=kubelet, wipe=wipe)
    node = Node(root, fake, timing, wiped=wiped)
    await fake.start()
    try:
        yield node
    finally:
        for agent in node.agents:
            await agent.plugin.stop()
        await fake.stop()
