"""The health board as the kubelet's streams want it: a report per look, with a number that rises."""

import asyncio

from kubeletplugin.clock import Clock
from kubeletplugin.dra.health import DeviceState, DeviceStatus, HealthReport
from kubeletplugin.health.board import HealthBoard
from kubeletplugin.health.verdict import Health
from kubeletplugin.inventory.model import Inventory

_STATES = {
    Health.HEALTHY: DeviceState.HEALTHY,
    Health.UNHEALTHY: DeviceState.UNHEALTHY,
    Health.UNKNOWN: DeviceState.UNKNOWN,
}


class BoardSource:
    """Implements dra.health.HealthSource."""

    def __init__(self, board: HealthBoard, pool: str, clock: Clock) -> None:
        self._board = board
        self._pool = pool
        self._clock = clock
        self._report = HealthReport(0, (), 0.0)
        self._newer = asyncio.Event()

    def looked(self, inventory: Inventory) -> None:
        """To be called with every look, changed or not."""
        self._board.update(inventory)
        statuses = tuple(
            DeviceStatus(
                self._pool, entry.device_name, _STATES[entry.health], entry.message, int(entry.last_updated.timestamp())
            )
            for entry in self._board.snapshot().devices
        )
        self._report = HealthReport(self._report.cycle + 1, statuses, self._clock.monotonic())
        reached, self._newer = self._newer, asyncio.Event()
        reached.set()

    async def next_report(self, after: int) -> HealthReport:
        while self._report.cycle <= after:
            await self._newer.wait()
        return self._report
