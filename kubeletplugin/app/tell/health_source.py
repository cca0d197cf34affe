"""What each look says of the devices' health, as the kubelet's streams want it: a report with a number that rises.

Nothing here has a timer: when no look arrives any more no report does, and the kubelet forgets what it was told.
"""

import asyncio

from kubeletplugin.clock import Clock
from kubeletplugin.dra.health import DeviceState, DeviceStatus, HealthReport
from kubeletplugin.health.verdict import Health, judge
from kubeletplugin.inventory.model import Device, Inventory

_STATES = {
    Health.HEALTHY: DeviceState.HEALTHY,
    Health.UNHEALTHY: DeviceState.UNHEALTHY,
    Health.UNKNOWN: DeviceState.UNKNOWN,
}


class LookReports:
    """Implements dra.health.HealthSource."""

    def __init__(self, pool: str, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._report = HealthReport(0, (), 0.0)
        self._newer = asyncio.Event()

    def looked(self, inventory: Inventory) -> None:
        """To be called with every look, changed or not."""
        statuses = tuple(self._status(device, inventory) for device in inventory.devices)
        self._report = HealthReport(self._report.cycle + 1, statuses, self._clock.monotonic())
        reached, self._newer = self._newer, asyncio.Event()
        reached.set()

    async def next_report(self, after: int) -> HealthReport:
        while self._report.cycle <= after:
            await self._newer.wait()
        return self._report

    def _status(self, device: Device, inventory: Inventory) -> DeviceStatus:
        verdict = judge(device, inventory)
        updated = int(self._clock.now().timestamp())
        return DeviceStatus(self._pool, device.name, _STATES[verdict.health], verdict.message, updated)
