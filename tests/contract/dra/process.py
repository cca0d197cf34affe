"""One instance as a process of its own: ``python -m tests.contract.dra.process ROOT NAME``.

It names itself as the pool of every device, so that an answer tells who served. Claims with a special name make it
misbehave: ``stop-in-lock`` stops the whole process inside the lease's shared lock, ``block-loop`` blocks its event
loop, ``wait-at-NAME`` waits at that instance until it yields.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubeletplugin.clock import SystemClock
from kubeletplugin.dra.health import HealthReport
from kubeletplugin.dra.plugin import DraPlugin
from kubeletplugin.dra.sockets import choose_paths, plugin_dir, registry_dir
from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.processes import HostProcesses
from kubeletplugin.lease.watchdog import Watchdog, WatchdogTiming
from kubeletplugin.prepare.model import ClaimRef, PreparedDevice, PrepareResult
from tests.contract.dra.support import BOOT, DRIVER, PATIENT, PROCESS_LEASE


class Instance:
    """ClaimHandler, ActiveWork and HealthSource in one."""

    def __init__(self, name: str, lease: Lease) -> None:
        self._name = name
        self._lease = lease
        self._yielding = asyncio.Event()

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        for claim in claims:
            await self._misbehave(claim.name)
        device = PreparedDevice((), self._name, "gpu-0", ("k8s.gpu.nvidia.com/claim=x",))
        with self._lease.fence(self._lease.epoch or 0).held():
            return {claim.uid: PrepareResult((device,)) for claim in claims}

    async def _misbehave(self, name: str) -> None:
        if name == "stop-in-lock":
            with self._lease.fence(self._lease.epoch or 0).held():
                os.kill(os.getpid(), signal.SIGSTOP)
        elif name == "block-loop":
            time.sleep(60)  # noqa: ASYNC251 - what the watchdog is for
        elif name == f"wait-at-{self._name}":
            await self._yielding.wait()
            raise NotActiveError("yielding")

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        with self._lease.fence(self._lease.epoch or 0).held():
            return {claim.uid: "" for claim in claims}

    async def activate(self, epoch: int) -> None:
        self._yielding.clear()

    async def deactivate(self) -> None:
        self._yielding.set()

    async def next_report(self, after: int) -> HealthReport:
        await asyncio.Event().wait()
        raise AssertionError("never set")


async def main(root: Path, name: str) -> None:
    folder = plugin_dir(root, DRIVER)
    paths = choose_paths(registry_dir(root), folder, DRIVER, name)
    clock = SystemClock()
    lease = Lease(
        folder / "lease", name, BOOT, str(paths.dra), clock=clock, processes=HostProcesses(), timing=PROCESS_LEASE
    )
    instance = Instance(name, lease)
    watchdog = Watchdog(clock, WatchdogTiming(interval=0.1, misses=6))
    plugin = DraPlugin(
        DRIVER, paths, lease, instance, instance, instance, clock=clock, timing=PATIENT, watchdog=watchdog
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, time.sleep, 60)
    await plugin.start()
    await stop.wait()
    await plugin.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
