"""A node without a machine: the real agent between a simulated host, an API server in memory and a kubelet without
containers, all in one folder of the temporary file system.

The agent runs in this process as it would in its own: its gRPC sockets, its HTTP requests, its ledger and its files
are real. Needs no rights and writes nowhere else. The folder's path is kept short, since a socket's path has 107 bytes.
"""

import asyncio
import contextlib
import logging
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from deviceclasses.catalogue import device_classes
from deviceclasses.names import DRIVER_NAME
from gpuclaim.cli.node_status import read_status
from gpuclaim.demo.apiserver import FakeApiServer
from gpuclaim.demo.kubelet import FakeKubelet
from kubeapi.client import DEVICE_CLASSES, NODES, RESOURCE_SLICES, Json
from kubeletplugin.app.agent import Agent
from kubeletplugin.app.host.simulation import mig_layout
from kubeletplugin.app.logs import TextFormatter
from kubeletplugin.app.settings import Settings
from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated import LayoutError, open_node

T = TypeVar("T")

NODE_NAME = "demo-node"
READY_SECONDS = 20.0
LOOK_SECONDS = 0.02

_LONGEST_TEMPORARY_FOLDER = 40
"""Bytes; what is below it needs some sixty of the 107."""


class WrongError(Exception):
    """Something isn't as it should be; one line that says what."""


class Pods:
    """The processes of this node's pods, as the agent sees them: by cgroup. Nothing runs behind these numbers."""

    def __init__(self, host_root: Path) -> None:
        self._kubepods = host_root / "sys" / "fs" / "cgroup" / "kubepods"
        self._kubepods.mkdir(parents=True)
        (host_root / "proc").mkdir(parents=True)
        (host_root / "proc" / "self").symlink_to("/proc/self")

    def run(self, pod_uid: str, pid: int) -> None:
        folder = self._kubepods / f"pod{pod_uid}"
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(f"{pid}\n")

    def end(self, pod_uid: str) -> None:
        shutil.rmtree(self._kubepods / f"pod{pod_uid}", ignore_errors=True)


class Stage:
    """``async with`` begins with a published node and ends with nothing running. ``folder`` is the caller's."""

    def __init__(self, folder: Path, machine: str, mig: Sequence[str] = ()) -> None:
        self.log = folder / "agent.log"
        self.server = FakeApiServer()
        self.kubelet = FakeKubelet(folder / "kubelet", wipe=self.wipe)
        self.pods = Pods(folder / "host")
        # A short UID in place of a pod's keeps the sockets' names readable.
        self.settings = settings_for(folder, machine, mig).model_copy(update={"pod_uid": "demo"})
        self._tree = folder / "machine.tree"
        self._running = Agent(self.settings)
        self._agent: asyncio.Task[None] | None = None
        self._logs: logging.Handler = logging.NullHandler()
        self._level = logging.getLogger().level

    async def __aenter__(self) -> "Stage":
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Raises FatalError for a wrong machine or layout, WrongError when the agent doesn't become ready."""
        self._write_logs()
        self._make_machine()
        await self.server.start()
        self.server.put(NODES, {"metadata": {"name": NODE_NAME}})
        for device_class in device_classes():
            self.server.put(DEVICE_CLASSES, device_class)
        self._write_kubeconfig()
        await self.kubelet.start()
        self._agent = asyncio.create_task(self._running.run(), name="agent")
        await self.attend(self._until_ready())

    async def stop_agent(self) -> None:
        """As a SIGTERM to its process would."""
        if self._agent is None:
            return
        agent, self._agent = self._agent, None
        self._running.stop()
        await asyncio.gather(agent, return_exceptions=True)

    async def stop(self) -> None:
        await self.stop_agent()
        await self.kubelet.stop()
        await self.server.stop()
        logging.getLogger().removeHandler(self._logs)
        logging.getLogger().setLevel(self._level)
        self._logs.close()

    async def attend(self, work: Coroutine[Any, Any, T]) -> T:
        """The outcome of ``work``; WrongError as soon as the agent ends by itself."""
        agent = self._agent
        if agent is None:
            raise RuntimeError("attend: the agent hasn't been started")
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, agent], return_when=asyncio.FIRST_COMPLETED)
            if self._agent is None:
                return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            return task.result()
        error = agent.exception()
        raise WrongError(f"the agent ended: {error or 'without saying why'}") from error

    async def status(self) -> dict[str, Any]:
        """What `gpuclaim status` says on this node. FatalError as long as there is nothing to ask."""
        return await read_status(self.settings.plugin_dir)

    def slices(self) -> list[Json]:
        return [item for item in self.server.objects(RESOURCE_SLICES) if item["spec"].get("nodeName") == NODE_NAME]

    async def wipe(self, driver: str | None) -> None:
        for item in self.slices():
            if driver in (None, item["spec"]["driver"]):
                self.server.remove(RESOURCE_SLICES, item["metadata"]["name"])

    async def _until_ready(self) -> None:
        reason: Any = "it doesn't answer"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    with contextlib.suppress(FatalError):
                        reason = (await self.status()).get("ready", reason)
                    if reason is True:
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        raise WrongError(f"the agent isn't ready after {READY_SECONDS:g} s: {reason}")

    def _write_kubeconfig(self) -> None:
        Path(self.settings.kubeconfig).write_text(yaml.safe_dump(kubeconfig(self.server.url)))

    def _make_machine(self) -> None:
        """Before the agent does, with files in place of device nodes, which nobody but root can make."""
        try:
            node = open_node(self.settings.machine, Path(self.settings.machine_state), mig_layout(self.settings.mig))
        except LayoutError as error:
            raise FatalError(str(error)) from error
        node.materialise(self._tree, "placeholder")

    def _write_logs(self) -> None:
        handler = logging.FileHandler(self.log)
        handler.setFormatter(TextFormatter())
        handler.setLevel(logging.INFO)
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(logging.INFO)
        self._logs = handler


def temporary_folder() -> Path:
    """A new one, in /tmp where the usual place has a long path. OSError when none can be made."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="gpuclaim-", dir=usual if len(usual) <= _LONGEST_TEMPORARY_FOLDER else "/tmp"))


def settings_for(folder: Path, machine: str, mig: Sequence[str] = ()) -> Settings:
    """The agent's, for a node in ``folder``."""
    return Settings.model_validate(
        {
            "node_name": NODE_NAME,
            "kubeconfig": str(folder / "kubeconfig"),
            "kubelet_root_dir": folder / "kubelet",
            "cdi_dir": folder / "cdi",
            "host_root": folder / "host",
            "machine": machine,
            "machine_state": str(folder / "machine.json"),
            "mig": tuple(mig),
            "http_endpoint": "",
        }
    )


def kubeconfig(url: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "demo",
        "clusters": [{"name": "demo", "cluster": {"server": url}}],
        "users": [{"name": DRIVER_NAME, "user": {}}],
        "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": DRIVER_NAME}}],
    }
