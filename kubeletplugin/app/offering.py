"""What the node offers to the scheduler: what was found, less what has a problem, less what other plugins gave out."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from kubeletplugin.app.parts import Parts
from kubeletplugin.app.tell.classic_news import Finding
from kubeletplugin.app.watch.classic_watch import ClassicWatch
from kubeletplugin.classic.holds import blocked
from kubeletplugin.classic.judge import ClassicJudge
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import Hold, HoldState
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.manager import ClaimManager

log = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 5.0
"""How long publishing waits for devices that other plugins may be about to give back; it goes on without them."""

DRIVER_SECONDS = 10.0
"""How long the driver may be in trouble before the Node's events tell: a reload takes seconds."""


class Offering:
    def __init__(
        self, parts: Parts, ledger: Ledger, manager: ClaimManager, judge: ClassicJudge, watch: ClassicWatch
    ) -> None:
        self._parts = parts
        self._ledger = ledger
        self._manager = manager
        self._judge = judge
        self._watch = watch
        self._begun = False

    async def publish(self, bound: asyncio.Task[None]) -> None:
        """The inventory at every change, from the first look under bound names on."""
        parts = self._parts
        await asyncio.wait([bound])
        settled = asyncio.ensure_future(self._watch.settled.wait())
        await wait_for_any(parts.clock, settled, FIRST_LOOK_SECONDS, cancel=True)
        async for inventory in parts.inventory.changes():
            parts.notices.inventory_changed(inventory)
            self._offer(inventory)

    async def follow_others(self, inventory: Callable[[], Inventory]) -> None:
        """Offers anew at every change of what other plugins gave out."""
        while True:
            await self._judge.changed.wait()
            self._judge.changed.clear()
            looked = inventory()
            if looked.driver_version and self._begun:
                self._offer(looked)

    async def tell_of_others(self, inventory: Callable[[], Inventory]) -> None:
        """After each look, which knows pods' names."""
        while True:
            await self._watch.looked.wait()
            self._watch.looked.clear()
            looked = inventory()
            if looked.driver_version:
                self._parts.notices.others_changed(await self._find(looked))

    async def _find(self, looked: Inventory) -> Finding:
        judge = self._judge
        taken = blocked(looked, judge.holds)
        gpus = {device.gpu_uuid for device in looked.devices if device.uuid in taken}
        holds = [hold for gpu in sorted(gpus) for hold in await self._ledger.holds_on(gpu)]
        claimed = [hold for hold in holds if hold.device.uuid in taken and _keeps_others_out(hold)]
        return Finding(looked, taken, claimed, judge.blind, judge.nameless)

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
        self._begun = True
        inventory = self._judge.withhold(looked)
        offered = tuple(device for device in inventory.devices if not device.problem)
        self._parts.slices.set_devices(replace(inventory, devices=offered))
        self._manager.inventory_changed()


def _keeps_others_out(hold: Hold) -> bool:
    return hold.state is HoldState.HELD and not hold.device.admin
