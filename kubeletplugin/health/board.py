"""The node's health board: one verdict per device, as of the last look, for the health streams and for people.

Written by one task (``watch``), read by any number of streams. A stream sends the whole board, at a change and before
the kubelet's patience ends, so that silence always means that the agent is gone. A verdict isn't kept beyond its time:
when no look arrives any more, everything turns Unknown, whatever was seen last.
"""

import datetime
from collections.abc import AsyncIterator
from dataclasses import dataclass

from kubeletplugin.clock import Clock
from kubeletplugin.health.verdict import Health, Verdict, judge
from kubeletplugin.inventory.broadcast import Latest
from kubeletplugin.inventory.model import Inventory

STALE_SECONDS = 30.0
"""The kubelet's own patience with a health value: three looks."""

STALE = "the agent hasn't been able to look at the GPUs lately"
NO_LOOK_YET = "the agent hasn't looked at the GPUs yet"


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """``since`` is when this verdict was first reached, ``last_updated`` when it was last confirmed (UTC)."""

    device_name: str
    device_uuid: str
    health: Health
    message: str
    since: datetime.datetime
    last_updated: datetime.datetime


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """All devices, in the inventory's order. ``version`` grows when a verdict, a message or the set of devices
    changes, and not when a look only confirms."""

    version: int
    devices: tuple[DeviceHealth, ...] = ()

    def by_name(self, device_name: str) -> DeviceHealth | None:
        return next((device for device in self.devices if device.device_name == device_name), None)


class HealthBoard:
    """Used on one event loop."""

    def __init__(self, clock: Clock, stale_seconds: float = STALE_SECONDS) -> None:
        self._clock = clock
        self._stale_seconds = stale_seconds
        self._looked_at: float | None = None
        self._current = HealthSnapshot(0)
        self._changes: Latest[HealthSnapshot] = Latest()

    async def watch(self, looks: AsyncIterator[Inventory]) -> None:
        """Feeds the board from InventoryService.looks(), for ever."""
        async for inventory in looks:
            self.update(inventory)

    def update(self, inventory: Inventory) -> None:
        """Judges every device of a look that just ended."""
        now = self._clock.now()
        self._looked_at = self._clock.monotonic()
        before = {device.device_uuid: device for device in self._current.devices}
        devices = []
        for device in inventory.devices:
            verdict = judge(device, inventory)
            known = before.get(device.uuid)
            same = known is not None and _verdict(known) == verdict
            since = known.since if known is not None and same else now
            devices.append(DeviceHealth(device.name, device.uuid, verdict.health, verdict.message, since, now))
        self._set(tuple(devices))

    def snapshot(self) -> HealthSnapshot:
        """The board now: stale verdicts are Unknown, and turning stale is a change."""
        if self._looked_at is not None and self._clock.monotonic() - self._looked_at > self._stale_seconds:
            now = self._clock.now()
            self._set(tuple(_stale(device, now) for device in self._current.devices))
        return self._current

    def verdict(self, device_name: str) -> Verdict:
        """For one device by name; Unknown for one that the board doesn't know."""
        device = self.snapshot().by_name(device_name)
        if device is not None:
            return _verdict(device)
        return Verdict(Health.UNKNOWN, NO_LOOK_YET if self._looked_at is None else "no device of this name is known")

    def changes(self) -> AsyncIterator[HealthSnapshot]:
        """The board, and the newest one whenever its version has grown."""
        return self._changes.follow()

    def _set(self, devices: tuple[DeviceHealth, ...]) -> None:
        changed = self._current.version == 0 or _outcome(devices) != _outcome(self._current.devices)
        self._current = HealthSnapshot(self._current.version + changed, devices)
        if changed:
            self._changes.set(self._current)


def _outcome(devices: tuple[DeviceHealth, ...]) -> list[tuple[str, str, Verdict]]:
    return [(device.device_name, device.device_uuid, _verdict(device)) for device in devices]


def _verdict(device: DeviceHealth) -> Verdict:
    return Verdict(device.health, device.message)


def _stale(device: DeviceHealth, now: datetime.datetime) -> DeviceHealth:
    if _verdict(device) == Verdict(Health.UNKNOWN, STALE):
        return device
    return DeviceHealth(device.device_name, device.device_uuid, Health.UNKNOWN, STALE, now, device.last_updated)
