"""What the node offers to the scheduler: what was found, less what has a problem, less what other plugins gave out."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from kubeletplugin.app.parts import Parts
from kubeletplugin.app.watch.classic_watch import ClassicWatch
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.manager import ClaimManager

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 5.0
"""How long publishing waits for a first look at other plugins' devices; without one it goes on with what is known."""


DRIVER_SECONDS = 10.0
"""How long the driver may be in trouble before the Node's events tell: a reload takes seconds."""


class Offering:
    def __init__(self, parts: Parts, ledger: Ledger, manager: ClaimManager, classic: ClassicWatch) -> None:
        self._parts = parts
        self._ledger = ledger
        self._manager = manager
        self._classic = classic

    async def publish(self, bound: asyncio.Task[None]) -> None:
        """The inventory at every change, from the first look under bound names on."""
        parts = self._parts
        await asyncio.wait([bound])
        looked = asyncio.ensure_future(self._classic.looked.wait())
        await wait_for_any(parts.clock, looked, FIRST_LOOK_SECONDS, cancel=True)
        async for inventory in parts.inventory.changes():
            parts.notices.inventory_changed(inventory)
            self._offer(inventory)

    async def follow_classic(self, inventory: Callable[[], Inventory]) -> None:
        """The same at every change of what other plugins gave out."""
        while True:
            await self._classic.changed.wait()
            self._classic.changed.clear()
            looked = inventory()
            if looked.driver_version:
                self._offer(looked)

    async def follow_driver(self) -> None:
        """Tells what keeps the GPUs from being looked at, from the start on, and when it is over."""
        parts = self._parts
        async for problem in parts.inventory.problems():
            if problem:
                await parts.clock.sleep(DRIVER_SECONDS)
            parts.notices.driver_trouble(parts.inventory.problem)

    async def note_told(self) -> None:
        """For ever: what people have been told, so that no later instance tells it again."""
        notices = self._parts.notices
        while True:
            await notices.told_changed.wait()
            notices.told_changed.clear()
            try:
                await self._ledger.set_told(notices.told)
            except RecoverableError as error:
                log.warning("note what was told: %s", error)

    def _offer(self, looked: Inventory) -> None:
        """A device with a problem is kept for who has it, and offered to nobody."""
        if self._classic.looked.is_set():
            self._parts.notices.classic_changed(self._classic.taken(looked))
        inventory = self._classic.withhold(looked)
        offered = tuple(device for device in inventory.devices if not device.problem)
        self._parts.slices.set_devices(replace(inventory, devices=offered))
        self._manager.inventory_changed()
