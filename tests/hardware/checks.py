"""What is checked on a machine with a GPU, in this order; each step says what it saw.

A step that doesn't apply here raises Skip with the reason; one that finds something wrong raises any other error, and
the next ones are tried all the same where they can be.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuclaim.demo.cdi_files import CdiFiles
from kubeapi.client import Json
from kubeletplugin.app.host.hardware import open_hardware
from kubeletplugin.app.host.look import look
from kubeletplugin.inventory.model import Device
from kubeletplugin.nvml.api import Nvml
from tests.cluster.leftovers import Places, wait_for_none
from tests.hardware.bundle import Edits, missing_paths, resolve
from tests.hardware.node import HardwareNode, Use
from tests.hardware.runtime import Containers, missing_requirement

FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The host's: its inode is a constant of the kernel."""

COMMON = re.compile(r"nvidia(ctl|-uvm|-uvm-tools|-modeset|-caps)")
LAST_SECONDS = 15.0


class Skip(Exception):
    """Not a failure: the step can't be done on this machine, and why."""


@dataclass(slots=True)
class Outcome:
    step: str
    result: str
    seconds: float
    detail: str


@dataclass(slots=True)
class Checks:
    """``simulated``: there is no device behind the driver's files, so nothing that talks to one can run."""

    node: HardwareNode
    simulated: bool = False
    runtime: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    _device: Device | None = None
    _use: Use | None = None
    _edits: Edits | None = None
    _containers: Containers | None = None

    async def run(self) -> None:
        await self._step("inventory", self.inventory)
        if self._device is None:
            return
        await self.node.start()
        try:
            for name, step in self._steps().items():
                await self._step(name, step)
        finally:
            if self._containers is not None:
                self._containers.remove_cgroups()
            await self.node.stop()

    def _steps(self) -> dict[str, Callable[[], Awaitable[str]]]:
        return {
            "slices": self.slices,
            "driver spec": self.driver_spec,
            "prepare": self.prepare,
            "container's devices": self.container_devices,
            "nvidia-smi": self.nvidia_smi,
            "CUDA and drain": self.cuda_and_drain,
            "nothing left": self.nothing_left,
        }

    async def _step(self, name: str, step: Callable[[], Awaitable[str]]) -> None:
        begun = time.monotonic()
        try:
            result, detail = "ok", await step()
        except Skip as reason:
            result, detail = "skipped", str(reason)
        except Exception as error:
            result, detail = "FAILED", f"{type(error).__name__}: {error}"
        self.outcomes.append(Outcome(name, result, time.monotonic() - begun, detail))

    # --- steps ---
    async def inventory(self) -> str:
        settings = self.node.settings
        found = await look(settings, await asyncio.to_thread(open_hardware, settings))
        withheld = [f"{gpu.pci_bus_id or gpu.index}: {gpu.reason}" for gpu in found.withheld]
        whole = [device for device in found.devices if device.mig is None]
        if not whole:
            raise RuntimeError(f"no full GPU to claim; withheld: {withheld or 'none'}")
        self._device = whole[0]
        names = ", ".join(f"{device.name} ({device.uuid})" for device in found.devices)
        return f"driver {found.driver_version}: {names}" + (f"; withheld {withheld}" if withheld else "")

    async def slices(self) -> str:
        """The API server in memory refuses what Kubernetes' would."""
        await self.node.ready()
        devices = [device for piece in self.node.slices() for device in piece["spec"].get("devices", [])]
        chosen = next((device for device in devices if device["name"] == self._chosen.name), None)
        if chosen is None:
            raise RuntimeError(f"{self._chosen.name} isn't in the slices: {[device['name'] for device in devices]}")
        keys = sorted({*chosen.get("attributes", {}), *chosen.get("capacity", {})})
        return f"{len(devices)} devices; {self._chosen.name} has {', '.join(keys)}"

    async def driver_spec(self) -> str:
        path, spec = CdiFiles(self.node.settings.cdi_dir).driver()
        missing = missing_paths(spec, self.node.settings.host_root)
        if missing:
            raise RuntimeError(f"{path.name} names what isn't there: {missing}")
        edits = spec.get("containerEdits", {})
        counts = {key: len(edits.get(key) or ()) for key in ("mounts", "deviceNodes", "hooks")}
        return ", ".join(f"{count} {key}" for key, count in counts.items())

    async def prepare(self) -> str:
        # Also one that is refused must be unprepared at the end, as the kubelet would.
        self._use = self.node.use("first", self._chosen.name)
        begun = time.monotonic()
        ids = await self.node.prepare(self._use)
        spent = time.monotonic() - begun
        self._edits = resolve(self.node.settings.cdi_dir, ids)
        return f"{', '.join(ids)} in {spent * 1000:.0f} ms"

    async def container_devices(self) -> str:
        containers, edits = self._made()
        listing = await asyncio.to_thread(containers.output, edits, ["ls", "/dev"])
        nodes = {name for name in listing.split() if name.startswith("nvidia")}
        gpus = {name for name in nodes if re.fullmatch(r"nvidia\d+", name)}
        others = {name for name in nodes - gpus if not COMMON.fullmatch(name)}
        wanted = {f"nvidia{self._chosen.minor}"}
        if gpus != wanted or others:
            raise RuntimeError(f"the container sees {sorted(nodes)}, not only {sorted(wanted)} and the common nodes")
        return f"{containers.runtime}: {', '.join(sorted(nodes))}"

    async def nvidia_smi(self) -> str:
        containers, edits = self._made()
        if self.simulated:
            raise Skip("there is no device behind the driver's files")
        listing = await asyncio.to_thread(containers.output, edits, ["nvidia-smi", "-L"])
        found = re.findall(r"GPU-[0-9a-f-]{36}", listing)
        if found != [self._chosen.uuid]:
            raise RuntimeError(f"nvidia-smi -L lists {found}, not only {self._chosen.uuid}")
        return str(listing).strip()

    async def cuda_and_drain(self) -> str:
        """A process that holds a CUDA context is seen, outlives its claim, and is waited for by the next one."""
        containers, edits = self._made()
        script = str(Path(__file__).with_name("cuda.py"))
        command = [sys.executable, "-S", script, *(["--without-cuda"] if self.simulated else [])]
        with containers.started(edits, command) as process:
            said = await asyncio.to_thread(_until_waiting, process)
            seen = [self._check_cuda(said), await self._seen_by_nvml()]
            drained = await self._drains(process)
        return "; ".join(text for text in (*seen, drained) if text)

    async def nothing_left(self) -> str:
        if self._use is not None:
            await self.node.unprepare(self._use)
        places = Places(self.node.settings.kubelet_root_dir, self.node.settings.cdi_dir)
        found = await asyncio.to_thread(wait_for_none, places, LAST_SECONDS)
        if found:
            raise RuntimeError("; ".join(found))
        return "no CDI file of a claim, no row, no temporary file, no dead socket"

    # --- their parts ---
    @property
    def _chosen(self) -> Device:
        if self._device is None:
            raise Skip("there is no GPU to claim")
        return self._device

    def _made(self) -> tuple[Containers, Edits]:
        if self._edits is None or self._use is None:
            raise Skip("the claim wasn't prepared")
        if self._containers is None:
            if reason := missing_requirement():
                raise Skip(f"no container can be made: {reason}")
            self._containers = Containers(self.node.folder, self._use.pod_uid, self.runtime)
        return self._containers, self._edits

    def _check_cuda(self, said: Json) -> str:
        if self.simulated:
            return "CUDA not run: there is no device"
        if said.get("devices") != "1" or said.get("uuid") != self._chosen.uuid or not said.get("copied", "").isdigit():
            raise RuntimeError(f"CUDA in the container said {said}")
        return f"CUDA copied {said['copied']} bytes there and back on {said['uuid']}"

    async def _seen_by_nvml(self) -> str:
        if self.simulated:
            return ""
        pids = await asyncio.to_thread(self._processes)
        if pids:
            return f"NVML shows {len(pids)} process: {sorted(pids)}"
        if os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
            return "NVML shows no process, as expected outside of the host's PID namespace"
        raise RuntimeError("NVML shows no process while a CUDA context is held")

    def _processes(self) -> set[int]:
        nvml: Nvml = open_hardware(self.node.settings).nvml
        nvml.init()
        try:
            return {process.pid for process in nvml.processes(nvml.device_by_uuid(self._chosen.uuid))}
        finally:
            nvml.shutdown()

    async def _drains(self, process: "subprocess.Popen[str]") -> str:
        """Ends the claim, and then the process."""
        use = self._use
        if use is None:
            raise Skip("the claim wasn't prepared")
        await self.node.unprepare(use)
        self._use = self._edits = None
        draining = await self.node.state(self._chosen.name)
        if draining["state"] != "draining":
            raise RuntimeError(f"the process runs and {self._chosen.name} is {draining['state']}")
        successor = self.node.use("second", self._chosen.name)
        waiting = asyncio.create_task(self.node.prepare(successor))
        done, _ = await asyncio.wait([waiting], timeout=2)
        if done:
            raise RuntimeError(f"the next claim got the GPU beside the process: {waiting.result()}")
        begun = time.monotonic()
        await asyncio.to_thread(_end, process)
        await asyncio.wait_for(waiting, LAST_SECONDS)
        spent = time.monotonic() - begun
        await self.node.unprepare(successor)
        reason = draining["holders"][0]["reason"]
        return f"draining ({reason}); the next claim waited and had it {spent:.1f} s after the process was told to end"


def _until_waiting(process: "subprocess.Popen[str]") -> Json:
    """What it printed, by word."""
    said: Json = {}
    if process.stdout is None:
        raise RuntimeError("read what the container says: it was started without a pipe")
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        said[word] = rest
        if word == "waiting":
            return said
    errors = process.stderr.read() if process.stderr is not None else ""
    raise RuntimeError(f"the container ended: {said or errors.strip()[-500:]}")


def _end(process: "subprocess.Popen[str]") -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait(10)


def render(outcomes: Sequence[Outcome]) -> str:
    width = max(len(outcome.step) for outcome in outcomes)
    lines = [f"{o.step:{width}}  {o.result:7}  {o.seconds:5.1f} s  {o.detail}" for o in outcomes]
    failed = [outcome.step for outcome in outcomes if outcome.result == "FAILED"]
    verdict = f"FAILED: {', '.join(failed)}" if failed else "nothing failed"
    return "\n".join([*lines, f"{sum(outcome.seconds for outcome in outcomes):.0f} s; {verdict}"])
