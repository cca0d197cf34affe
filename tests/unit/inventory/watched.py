"""An inventory service that runs over a simulated machine, on a virtual clock."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.session import NvmlSession
from kubeletplugin.inventory.watcher import InventoryService
from tests.fakes.clock import VirtualClock
from tests.unit.inventory.support import Bindings, Machine


class Watched:
    """A service that runs over one machine."""

    def __init__(self, machine: Machine, **options: Any) -> None:
        self.machine = machine
        self.node = machine.node
        machine.close()
        self.clock = VirtualClock()
        self.session = NvmlSession(machine.nvml, machine.workers, self.clock)
        self.service = InventoryService(machine.prober(), self.session, self.clock, **options)
        self.bindings = Bindings()

    @property
    def inventory(self) -> Inventory:
        assert self.service.current is not None
        return self.service.current

    def names(self) -> set[str]:
        return {device.name for device in self.inventory.devices}

    def reasons(self) -> dict[int, str]:
        return {gpu.index: gpu.reason for gpu in self.inventory.withheld}

    def hold(self, *names: str) -> None:
        self.bindings.referenced.update(names)

    async def settle(self) -> None:
        await self.clock.settle()


@contextlib.asynccontextmanager
async def watching(
    machine: Machine, *, bound: bool = True, before: Callable[[], object] = tuple, **options: Any
) -> AsyncIterator[Watched]:
    """Runs the service from here on; ``before`` changes the machine before its first look."""
    watched = Watched(machine, **options)
    before()
    if bound:
        watched.service.use_bindings(watched.bindings)
    task = asyncio.create_task(watched.service.run())
    try:
        await watched.settle()
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
