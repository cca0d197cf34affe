"""Waiting for draining devices: they are over when no process is left, and nothing else ends them.

Polled, since nothing tells when a process ends; only while there are any, often at first (a killed pod's processes
live on for some two seconds) and rarer as a drain grows old.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from kubeletplugin import crashpoints
from kubeletplugin.ledger.model import Hold
from kubeletplugin.prepare.bells import Bells
from kubeletplugin.prepare.leftovers import Leftover, leftover
from kubeletplugin.prepare.ports import Node, OverdueDrain
from kubeletplugin.prepare.release import DRAINS, Releaser
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

SHORTEST_SECONDS = 0.1
LONGEST_SECONDS = 2.0
POLLS_PER_AGE = 10
"""A drain of age t is looked at again after t / 10, within the two limits."""

OVERDUE_SECONDS = 600.0
"""From here on a person should know: nothing that ends by itself takes so long."""

RETRY_SECONDS = 5.0
LOOK = "look at draining devices"


@dataclass(slots=True)
class _Followed:
    since: float
    reason: str


class DrainWatch:
    def __init__(self, node: Node, bells: Bells, releaser: Releaser) -> None:
        self._node = node
        self._bells = bells
        self._releaser = releaser
        self._followed: dict[int, _Followed] = {}
        self._troubles = Troubles(log)

    def reason(self, hold_id: int) -> str:
        """As of the last look; empty for a drain not looked at yet."""
        followed = self._followed.get(hold_id)
        return followed.reason if followed else ""

    async def run(self) -> None:
        """For ever; raises NotActiveError when the lease is lost."""
        while True:
            with self._bells.listen([DRAINS]) as begun:
                seconds = await self._pass_or_retry()
                if seconds is None:
                    await begun.wait()
                    seconds = SHORTEST_SECONDS
            await self._node.clock.sleep(seconds)

    async def look(self) -> float | None:
        """Looks at all once, ends those that are over. Returns the seconds until the next look, None without any."""
        holds = await self._node.ledger.draining()
        ids = {hold.id for hold in holds}
        self._followed = {key: value for key, value in self._followed.items() if key in ids}
        if not holds:
            self._node.notices.drains_overdue(())
            return None
        pods = frozenset[str]().union(*(hold.pods for hold in holds))
        look = await self._node.processes.look(pods, [hold.device for hold in holds])
        left, overdue = 0, []
        for hold in holds:
            sharers = await self._releaser.sharers("", hold.device)
            rest = leftover(look, hold.device, hold.pods, sharers)
            if rest is None:
                await self.end(hold)
            else:
                left += 1
                self._follow(hold, rest)
                if self._age(hold) >= OVERDUE_SECONDS:
                    overdue.append(OverdueDrain(hold, rest.pids, rest.reason))
        self._node.notices.drains_overdue(overdue)
        return self._interval() if left else None

    async def _pass_or_retry(self) -> float | None:
        seconds: float | None = RETRY_SECONDS
        with self._troubles.trying(LOOK):
            seconds = await self.look()
        return seconds

    async def end(self, hold: Hold) -> bool:
        """Whatever is left: those who wait for the device go on. False when it has ended since it was looked up."""
        crashpoints.reached("drain.over")
        if not await self._node.ledger.end_drain(hold):
            return False
        crashpoints.reached("drain.ended")
        self._followed.pop(hold.id, None)
        log.info("end drain of %s", hold.device.name, extra={"device": hold.device.name, "claim": hold.holder.id})
        self._bells.ring([hold.device.gpu_uuid])
        self._node.claims_changed()
        return True

    def _follow(self, hold: Hold, rest: Leftover) -> None:
        now = self._node.clock.monotonic()
        followed = self._followed.setdefault(hold.id, _Followed(now, rest.reason))
        followed.reason = rest.reason

    def _age(self, hold: Hold) -> float:
        """Seconds since it was noted, by any instance. By the wall clock, which may have been set meanwhile: that does
        for what people are told, nothing else hangs on it."""
        clock = self._node.clock
        noted = clock.now() - datetime.fromisoformat(hold.since)
        return max(clock.monotonic() - self._followed[hold.id].since, noted.total_seconds())

    def _interval(self) -> float:
        youngest = max(followed.since for followed in self._followed.values())
        age = self._node.clock.monotonic() - youngest
        return min(max(age / POLLS_PER_AGE, SHORTEST_SECONDS), LONGEST_SECONDS)
