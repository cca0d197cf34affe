"""A simulated node beside one API server: the real agent as a process, a kubelet that registers it, and claims.

The calls are made over the channel that the kubelet made, and its checkpoint is written before and after each as it
writes it, since the agent reads that. Times are of the call alone.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from deviceclasses.names import DRIVER_NAME
from gpuclaim.cli.node_status import read_status
from gpuclaim.demo.kubelet import FakeKubelet, call_prepare, call_unprepare
from gpuclaim.demo.kubelet_plugins import KubeletTiming, Plugin
from gpuclaim.demo.kubelet_state import ClaimInfo
from gpuclaim.demo.stage import NODE_NAME, Pods, settings_for
from kubeapi.client import NAMESPACES, NODES, RESOURCE_SLICES
from kubeapi.credentials import Connection, FixedConnection, tls_context
from kubeapi.errors import AlreadyExists
from kubeapi.rest import RestKubeApi
from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated import open_node
from tests.bench.claims import NAMESPACE, Claim, Claims, Place
from tests.bench.servers import TOKEN, Server

GPUS = 8
MACHINE = "dgx-h100"
CALL_SECONDS = 45.0
WAIT_SECONDS = 20.0


class BenchNode:
    """Implements measures.Subject for gpuclaim."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.settings = settings_for(folder, MACHINE)
        self.api = RestKubeApi(FixedConnection(_connection(server)))
        self.kubelet = FakeKubelet(folder / "kubelet", timing=KubeletTiming(look=0.005))
        devices = tuple(f"gpu-{index}" for index in range(GPUS))
        self.label = server.label
        self.claims = Claims(self.api, Place(DRIVER_NAME, NODE_NAME, NODE_NAME, devices))
        self._agent: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        if self._agent is None:
            raise RuntimeError("measure the agent: it doesn't run")
        return self._agent.pid

    @property
    def environment(self) -> Mapping[str, str]:
        """Of the agent's interpreter: its modules are compiled once, as an image has them."""
        left_out = ("GPUCLAIM_", "KUBE", "PYTHONDONTWRITEBYTECODE")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return inherited | {"PYTHONPYCACHEPREFIX": str(self.folder / "pycache")}

    # --- life ---
    async def start(self) -> None:
        """All but the agent. The machine's files are made here, as real hardware has them before any agent."""
        Pods(self.folder / "host")
        self._write_service_account()
        machine = open_node(MACHINE, Path(self.settings.machine_state))
        machine.materialise(self.folder / "machine.tree", "placeholder")
        for resource, name in ((NODES, NODE_NAME), (NAMESPACES, NAMESPACE)):
            labels = {"resource.kubernetes.io/admin-access": "true"} if resource is NAMESPACES else {}
            try:
                await self.api.create(resource, {"metadata": {"name": name, "labels": labels}})
            except AlreadyExists:
                continue
        await self.kubelet.start()

    async def stop(self) -> None:
        await self.stop_agent()
        await self.kubelet.stop()
        await self.api.close()

    async def start_agent(self, environment: Mapping[str, str] | None = None) -> None:
        settings, parts = self.settings, urlsplit(self.server.url)
        flags = {
            "--node-name": settings.node_name,
            "--kubelet-root-dir": settings.kubelet_root_dir,
            "--cdi-dir": settings.cdi_dir,
            "--host-root": settings.host_root,
            "--machine": settings.machine,
            "--machine-state": settings.machine_state,
        }
        in_pod = {"KUBERNETES_SERVICE_HOST": str(parts.hostname), "KUBERNETES_SERVICE_PORT": str(parts.port)}
        with (self.folder / "agent.log").open("ab") as log:
            self._agent = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.bench.agent_in_pod", str(self._account)),
                *(f"{flag}={value}" for flag, value in flags.items()),
                stderr=log,
                env={**self.environment, **in_pod, **(environment or {})},
            )

    async def stop_agent(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None and agent.returncode is None:
            agent.send_signal(signal.SIGTERM)
            await agent.wait()

    async def ready(self) -> None:
        """Until the agent is registered, active, and its slices are accepted."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    if (await read_status(self.settings.plugin_dir)).get("ready") is True:
                        return
                except FatalError:
                    pass
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def agent(self, environment: Mapping[str, str] | None = None) -> AsyncIterator[None]:
        """A ready one until the end of the block."""
        await self.start_agent(environment)
        try:
            await self.ready()
            yield
        finally:
            await self.stop_agent()

    # --- slices ---
    async def wipe_slices(self) -> None:
        for item in (await self.api.list(RESOURCE_SLICES)).items:
            await self.api.delete(RESOURCE_SLICES, item["metadata"]["name"])

    async def slice_versions(self) -> dict[str, str]:
        items = (await self.api.list(RESOURCE_SLICES)).items
        return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}

    async def seconds_until_published(self) -> float:
        """From the start of the agent's process until a watch has shown all GPUs."""
        version = (await self.api.list(RESOURCE_SLICES)).resource_version
        watch = self.api.watch(RESOURCE_SLICES, resource_version=version)
        next_event = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.05)
        begun = time.perf_counter()
        await self.start_agent()
        seen: set[str] = set()
        async with asyncio.timeout(WAIT_SECONDS):
            while len(seen) < GPUS:
                event = await next_event
                if event.type in ("ADDED", "MODIFIED"):
                    seen |= {device["name"] for device in event.object["spec"].get("devices", [])}
                next_event = asyncio.ensure_future(anext(watch))
        seconds = time.perf_counter() - begun
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)
        return seconds

    # --- calls, timed in ms ---
    async def prepare(self, *claims: Claim) -> float:
        """One call for all of them."""
        cache = self.kubelet.claims
        infos = [ClaimInfo(claim.uid, NAMESPACE, claim.name, {claim.pod}, {DRIVER_NAME: []}) for claim in claims]
        cache.claims.update({(NAMESPACE, info.name): info for info in infos})
        cache.sync()
        wires = [info.wire() for info in infos]
        plugin = self._plugin()
        begun = time.perf_counter()
        answer = await call_prepare(plugin, wires, CALL_SECONDS)
        milliseconds = (time.perf_counter() - begun) * 1000
        for info in infos:
            entry = answer.claims[info.uid]
            if entry.error or not entry.devices:
                raise RuntimeError(f"prepare {info.name}: {entry.error or 'no device'}")
            info.drivers[DRIVER_NAME] = list(entry.devices)
        cache.sync()
        return milliseconds

    async def unprepare(self, *claims: Claim) -> float:
        cache = self.kubelet.claims
        infos = [cache.claims[NAMESPACE, claim.name] for claim in claims]
        plugin = self._plugin()
        begun = time.perf_counter()
        answer = await call_unprepare(plugin, [info.wire() for info in infos], CALL_SECONDS)
        milliseconds = (time.perf_counter() - begun) * 1000
        for info in infos:
            if answer.claims[info.uid].error:
                raise RuntimeError(f"unprepare {info.name}: {answer.claims[info.uid].error}")
            del cache.claims[NAMESPACE, info.name]
        cache.sync()
        return milliseconds

    async def empty_call(self) -> float:
        begun = time.perf_counter()
        await call_prepare(self._plugin(), [], CALL_SECONDS)
        return (time.perf_counter() - begun) * 1000

    def _plugin(self) -> Plugin:
        plugin = self.kubelet.plugins.choose(DRIVER_NAME)
        if plugin is None:
            raise RuntimeError("call the agent: it isn't registered")
        return plugin

    # --- what a pod has mounted ---
    @property
    def _account(self) -> Path:
        return self.folder / "serviceaccount"

    def _write_service_account(self) -> None:
        self._account.mkdir()
        (self._account / "token").write_text(TOKEN)
        (self._account / "ca.crt").write_bytes(self.server.authority.read_bytes())


def _connection(server: Server) -> Connection:
    return Connection(server.url, f"Bearer {TOKEN}", tls_context(cafile=str(server.authority)))
