"""A node without a cluster: the agent as a process on the real NVML, an API server in memory, a kubelet without
containers. All files are in one folder, but for the GPU driver's own."""

import asyncio
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deviceclasses.names import DRIVER_NAME
from gpuclaim.cli.node_status import read_status
from gpuclaim.demo.apiserver import FakeApiServer
from gpuclaim.demo.kubelet import FakeKubelet, PodClaim
from gpuclaim.demo.stage import kubeconfig
from kubeapi.client import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Json
from kubeletplugin.app.settings import Settings
from kubeletplugin.errors import FatalError

NODE_NAME = "hardware"
NAMESPACE = "hardware"
READY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Use:
    """A pod and its claim of one device."""

    name: str
    claim_uid: str
    pod_uid: str


class HardwareNode:
    def __init__(self, folder: Path, host_root: Path, driver_roots: Sequence[str]) -> None:
        self.folder = folder
        self.server = FakeApiServer()
        self.kubelet = FakeKubelet(folder / "kubelet")
        given: dict[str, Any] = {"driver_roots": tuple(driver_roots)} if driver_roots else {}
        self.settings = Settings(
            node_name=NODE_NAME,
            kubeconfig=str(folder / "kubeconfig"),
            kubelet_root_dir=folder / "kubelet",
            cdi_dir=folder / "cdi",
            host_root=host_root,
            rescan_interval=1.0,
            http_endpoint="",
            **given,
        )
        self._agent: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        await self.server.start()
        self.server.put(NODES, {"metadata": {"name": NODE_NAME}})
        await self.kubelet.start()
        await asyncio.to_thread(self._write_kubeconfig)
        settings = self.settings
        flags: list[tuple[str, object]] = [
            ("--node-name", settings.node_name),
            ("--kubeconfig", settings.kubeconfig),
            ("--kubelet-root-dir", settings.kubelet_root_dir),
            ("--cdi-dir", settings.cdi_dir),
            ("--host-root", settings.host_root),
            *(("--driver-roots", root) for root in settings.driver_roots),
            ("--rescan-interval", settings.rescan_interval),
            ("--http-endpoint", ""),
        ]
        words = [f"{flag}={value}" for flag, value in flags]
        with self.log.open("wb") as output:
            self._agent = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gpuclaim", "kubeletplugin", *words, stderr=output
            )

    def _write_kubeconfig(self) -> None:
        Path(self.settings.kubeconfig).write_text(yaml.safe_dump(kubeconfig(self.server.url)))

    @property
    def log(self) -> Path:
        return self.folder / "agent.log"

    async def stop(self) -> None:
        if self._agent is not None and self._agent.returncode is None:
            self._agent.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._agent.wait(), 10)
            except TimeoutError:
                self._agent.kill()
                await self._agent.wait()
        await self.kubelet.stop()
        await self.server.stop()

    async def ready(self) -> Json:
        """The agent's status. RuntimeError when it isn't ready in time, or ended."""
        reason: object = "it doesn't answer"
        end = asyncio.get_running_loop().time() + READY_SECONDS
        while asyncio.get_running_loop().time() < end:
            if self._agent is None or self._agent.returncode is not None:
                raise RuntimeError(f"the agent ended: {self.log.read_text()[-1000:]}")
            try:
                status = await self.status()
                reason = status.get("ready")
                if reason is True:
                    return status
            except FatalError as error:
                reason = error
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the agent isn't ready after {READY_SECONDS:g} s: {reason}")

    async def status(self) -> Json:
        return await read_status(self.settings.plugin_dir)

    async def state(self, device: str) -> Json:
        """Of one device, as `gpuclaim status` shows it."""
        devices: list[Json] = (await self.status())["devices"]
        return next(entry for entry in devices if entry["name"] == device)

    def slices(self) -> list[Json]:
        return self.server.objects(RESOURCE_SLICES)

    # --- claims ---
    def use(self, name: str, device: str) -> Use:
        """A claim as scheduler and kubelet would leave it, allocated to this device."""
        pod_uid = str(uuid.uuid4())
        spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER_NAME}}]}}
        result = {"request": "gpu", "driver": DRIVER_NAME, "pool": NODE_NAME, "device": device}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": pod_uid}],
        }
        metadata = {"name": name, "namespace": NAMESPACE}
        made = self.server.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec, "status": status})
        return Use(name, made["metadata"]["uid"], pod_uid)

    async def prepare(self, use: Use) -> list[str]:
        """Over the agent's socket: the CDI ids. PodError with the event's text."""
        answered = await self.kubelet.prepare(use.pod_uid, [self._claim(use)])
        return answered[use.claim_uid]

    async def unprepare(self, use: Use) -> None:
        await self.kubelet.unprepare(use.pod_uid, [self._claim(use)])
        self.server.remove(RESOURCE_CLAIMS, use.name, NAMESPACE)

    @staticmethod
    def _claim(use: Use) -> PodClaim:
        return PodClaim(use.claim_uid, NAMESPACE, use.name, (DRIVER_NAME,))
