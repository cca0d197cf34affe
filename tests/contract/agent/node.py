"""A simulated node with a fake kubelet and API server, and any number of agents on it: in this process, or as
processes of their own as in production."""

import asyncio
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from deviceclasses.names import DRIVER_NAME
from gpuclaim.cli.node_status import read_status
from gpuclaim.demo.apiserver import FakeApiServer
from gpuclaim.demo.kubelet import FakeKubelet, PodClaim
from gpuclaim.demo.kubelet_plugins import KubeletTiming
from gpuclaim.demo.stage import NODE_NAME, Pods, kubeconfig, settings_for
from kubeapi.client import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Json
from kubeletplugin.app.agent import Agent
from kubeletplugin.app.settings import Settings
from kubeletplugin.clock import Clock, SystemClock
from kubeletplugin.errors import FatalError, RecoverableError
from kubeletplugin.nvml.simulated import SimulatedNode, open_node

T = TypeVar("T")

WAIT_SECONDS = 20.0
REPOSITORY = Path(__file__).parents[3]
MACHINE = "dgx-h100"
AGENT_COMMAND = ("-m", "gpuclaim", "kubeletplugin")


class HurriedClock(SystemClock):
    """The agent's pauses of seconds are over at once; everything else takes its time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


class RunningAgent:
    """In this process."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.agent = Agent(settings, clock)
        self.task = asyncio.create_task(self.agent.run(), name="agent")

    async def stop(self) -> None:
        """As SIGTERM would; raises what ended it before."""
        self.agent.stop()
        await self.task


class AgentProcess:
    """``python -m gpuclaim kubeletplugin``."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def status(self) -> int:
        """How it ended: its exit status; a signal's is negative."""
        return await asyncio.wait_for(self._process.wait(), WAIT_SECONDS)

    async def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return await self._process.wait()


class AgentNode:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = FakeApiServer(seed=1)
        # From 1.37 on a repeated answer replaces the first, so that tests can compare the two.
        self.kubelet = FakeKubelet(folder / "kubelet", timing=KubeletTiming(look=0.01), wipe=self.wipe, append=False)
        self.settings = settings_for(folder, MACHINE)
        self.pods = Pods(folder / "host")
        self.server.put(NODES, {"metadata": {"name": NODE_NAME}})
        self._agents: list[RunningAgent] = []
        self._processes: list[asyncio.subprocess.Process] = []
        self.machine().materialise(folder / "machine.tree", "placeholder")

    def machine(self) -> SimulatedNode:
        return open_node(MACHINE, Path(self.settings.machine_state))

    def write_kubeconfig(self) -> None:
        Path(self.settings.kubeconfig).write_text(yaml.safe_dump(kubeconfig(self.server.url)))

    # --- agents ---
    def start_agent(self, clock: Clock | None = None, **settings: Any) -> RunningAgent:
        agent = RunningAgent(self.settings.model_copy(update=settings), clock)
        self._agents.append(agent)
        return agent

    async def start_process(self, name: str, *further: str, command: Sequence[str] = AGENT_COMMAND) -> AgentProcess:
        """``further`` are flags beside the usual ones, or in the place of one; ``command`` is what Python runs."""
        log = self.folder / f"{name}.log"
        flags = {
            "--node-name": NODE_NAME,
            "--kubeconfig": self.settings.kubeconfig,
            "--kubelet-root-dir": self.settings.kubelet_root_dir,
            "--cdi-dir": self.settings.cdi_dir,
            "--host-root": self.settings.host_root,
            "--machine": MACHINE,
            "--http-endpoint": "",
            "--machine-state": self.settings.machine_state,
        }
        given = {word.partition("=")[0] for word in further}
        words = [*(f"{flag}={value}" for flag, value in flags.items() if flag not in given), *further]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, *words, stderr=output, env=_environment(), cwd=REPOSITORY
            )
        self._processes.append(process)
        return AgentProcess(process, log)

    async def stop(self) -> None:
        for agent in self._agents:
            agent.agent.stop()
        await asyncio.gather(*(agent.task for agent in self._agents), return_exceptions=True)
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
        await self.kubelet.stop()
        await self.server.stop()

    # --- what is seen ---
    def slices(self) -> list[Json]:
        return self.server.objects(RESOURCE_SLICES)

    def devices(self) -> list[str]:
        return [device["name"] for item in self.slices() for device in item["spec"].get("devices", [])]

    def claim_files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.settings.cdi_dir.glob("*claim_*")}

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.settings.kubelet_root_dir.rglob("*.sock"))

    async def status(self) -> dict[str, Any]:
        return await read_status(self.settings.plugin_dir)

    async def ready(self) -> dict[str, Any]:
        """The status as soon as an agent is registered, active and its slices are accepted."""

        async def is_ready() -> dict[str, Any]:
            try:
                status = await self.status()
            except (FatalError, RecoverableError):
                return {}
            return status if status.get("ready") is True else {}

        return await until(is_ready)

    async def holders(self, device: str) -> list[str]:
        found = next(entry for entry in (await self.status())["devices"] if entry["name"] == device)
        return [holder["name"] for holder in found["holders"]]

    # --- the cluster's part ---
    async def wipe(self, driver: str | None) -> None:
        for item in self.slices():
            self.server.remove(RESOURCE_SLICES, item["metadata"]["name"])

    def allocate(self, name: str, *devices: str, namespace: str = "default", pod: str = "") -> PodClaim:
        """A claim as the scheduler leaves it."""
        results = [{"request": "gpu", "driver": DRIVER_NAME, "pool": NODE_NAME, "device": device} for device in devices]
        reserved = {"resource": "pods", "name": f"pod-of-{name}", "uid": pod or str(uuid.uuid4())}
        claim = self.server.put(
            RESOURCE_CLAIMS,
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}]}},
                "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [reserved]},
            },
        )
        return PodClaim(claim["metadata"]["uid"], namespace, name, (DRIVER_NAME,))

    async def prepare(self, pod: str, claim: PodClaim) -> list[str]:
        return (await self.kubelet.prepare(pod, [claim]))[claim.uid]

    def claim_id(self, claim: PodClaim, device: str) -> str:
        return f"k8s.gpu.nvidia.com/claim={claim.uid}-{device}"


async def until(condition: Callable[[], Awaitable[T]], seconds: float = WAIT_SECONDS) -> T:
    """The first true outcome of ``condition``."""
    async with asyncio.timeout(seconds):
        while True:
            if found := await condition():
                return found
            await asyncio.sleep(0.01)


async def until_true(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    async def ask() -> object:
        return condition()

    await until(ask, seconds)


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GPUCLAIM_")}
