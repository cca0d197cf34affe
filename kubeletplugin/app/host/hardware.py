"""The machine under the agent: the real one through NVML and the host's file trees, or a simulated one.

Each is imported when it is chosen: an agent on real GPUs has no use for the simulator's models (2 MB), nor a simulated
one for NVML's bindings.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.app.settings import Settings
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.errors import FatalError
from kubeletplugin.inventory.reading import Surroundings
from kubeletplugin.inventory.sysfs import Sysfs, system_memory_bytes
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.library import find_library
from kubeletplugin.nvml.worker import NvmlWorkers

PROC = Path("/proc")
SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Hardware:
    """``proc``, ``sys`` and ``host`` are of the machine that has the GPUs. ``locate_driver`` is the root that the GPU
    driver lies under, None while there is none."""

    nvml: Nvml
    around: Surroundings
    proc: Path
    sys: Path
    host: DriverRoot
    locate_driver: Callable[[], DriverRoot | None]

    def boot_id(self) -> str:
        """FatalError where the kernel doesn't say: without it a reboot can't be told from a restart."""
        path = self.proc / "sys" / "kernel" / "random" / "boot_id"
        try:
            return path.read_text().strip()
        except OSError as error:
            raise FatalError(f"read the boot id from {path}: {error.strerror}") from error


def check_machine(settings: Settings) -> None:
    """Bad words for a simulated machine are told before anything is waited for. FatalError."""
    if settings.machine:
        from kubeletplugin.app.host import simulation

        simulation.check(settings)
    elif settings.mig:
        raise FatalError("--mig lays out a simulated machine's GPUs: it needs --machine")


def open_hardware(settings: Settings, state: Path | None = None) -> Hardware:
    """``state`` is where a simulated machine is kept unless the settings say. FatalError on bad input."""
    if settings.machine:
        from kubeletplugin.app.host import simulation

        return simulation.open_simulated(settings, Path(settings.machine_state) if settings.machine_state else state)
    check_machine(settings)
    return _real(settings)


def _real(settings: Settings) -> Hardware:
    from kubeletplugin.nvml.real import open_real

    roots = {settings.host_root / root.lstrip("/"): root for root in settings.driver_roots}

    def locate() -> DriverRoot | None:
        found = find_library(list(roots)).root
        return None if found is None else DriverRoot(found, roots[found])

    around = Surroundings(Sysfs(SYS), lambda: system_memory_bytes(PROC))
    return Hardware(open_real(list(roots)), around, PROC, SYS, DriverRoot(settings.host_root), locate)


class NvmlDevicePids:
    """Implements prepare.processes.DevicePids."""

    def __init__(self, nvml: Nvml, workers: NvmlWorkers) -> None:
        self._nvml = nvml
        self._workers = workers

    async def pids(self, device: HeldDevice) -> Collection[int]:
        return await self._workers.call(device.gpu_uuid, self._read, device)

    def _read(self, device: HeldDevice) -> frozenset[int]:
        nvml = self._nvml
        processes = nvml.processes(nvml.device_by_uuid(device.gpu_uuid))
        if device.whole_gpu:
            return frozenset(process.pid for process in processes)
        try:
            partition = nvml.device_by_uuid(device.uuid)
        except NvmlError as error:
            if error.code == NvmlCode.NOT_FOUND:
                return frozenset()  # its GPU answers and it has been destroyed, which takes that nobody is on it
            raise
        place = (nvml.gpu_instance_id(partition), nvml.compute_instance_id(partition))
        return frozenset(p.pid for p in processes if (p.gpu_instance_id, p.compute_instance_id) == place)
