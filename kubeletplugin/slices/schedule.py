"""When which pool is looked at: at once where something has changed, later after an error or where others keep at it.

What others do to a pool's slices is repaired at a pace (see pace). Nobody's change shortens a back-off, unless it takes
a slice away: that is repaired at once.
"""

import asyncio
import logging
import random
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from kubeapi.backoff import Backoff
from kubeapi.complaints import Complaints
from kubeletplugin.clock import Clock
from kubeletplugin.slices.pace import CHANGES_REFILL_SECONDS, DELETIONS_REFILL_SECONDS, RepairPace

GUARD_SECONDS = 0.02
"""Least time between two looks at a pool, so that the slices of one wipe are repaired together."""


@dataclass(slots=True)
class PoolState:
    """``due`` is a Clock.monotonic(), None while there is nothing to do. ``asked``: something changed since the last
    attempt. ``failing``: that attempt failed. ``undo``: the paces of what others did since. Deletions have a pace of
    their own: nobody's changes delay what a wipe needs."""

    backoff: Backoff
    complaints: Complaints
    due: float | None = None
    last_attempt: float = float("-inf")
    asked: bool = False
    failing: bool = False
    refused_until: float = 0.0
    deletions: RepairPace = field(default_factory=lambda: RepairPace(DELETIONS_REFILL_SECONDS))
    changes: RepairPace = field(default_factory=lambda: RepairPace(CHANGES_REFILL_SECONDS))
    undo: list[RepairPace] = field(default_factory=list)

    def begin(self, now: float) -> list[RepairPace]:
        """An attempt; returns the paces of what it may undo."""
        self.due, self.asked, self.last_attempt = None, False, now
        undo, self.undo = self.undo, []
        return undo

    def forget_failure(self) -> None:
        self.failing = False
        self.backoff.reset()


class Schedule:
    """Of one event loop."""

    def __init__(self, clock: Clock, rng: random.Random, log: logging.Logger) -> None:
        self._clock = clock
        self._rng = rng
        self._log = log
        self._states: dict[str, PoolState] = {}
        self._wake = asyncio.Event()

    def clear(self) -> None:
        self._states.clear()

    def pools(self) -> AbstractSet[str]:
        return self._states.keys()

    def state(self, pool: str) -> PoolState:
        if pool not in self._states:
            complaints = Complaints(self._log, f"pool {pool}: write slices")
            self._states[pool] = PoolState(Backoff(rng=self._rng), complaints)
        return self._states[pool]

    @property
    def settled(self) -> bool:
        """Every pool was looked at since something changed, and the last attempt succeeded."""
        return not any(state.failing or state.asked for state in self._states.values())

    def look(self, pool: str, not_before: float = 0.0) -> None:
        state = self.state(pool)
        due = max(self._clock.monotonic(), state.last_attempt + GUARD_SECONDS, not_before)
        state.due = due if state.due is None else min(state.due, due)
        state.asked = True
        self._wake.set()

    def changed_by_others(self, pool: str, *, deleted: bool) -> None:
        state = self.state(pool)
        if state.failing and not deleted:
            return
        pace = state.deletions if deleted else state.changes
        if pace not in state.undo:
            state.undo.append(pace)
        self.look(pool, pace.earliest(self._clock.monotonic()))

    def due(self) -> list[str]:
        now = self._clock.monotonic()
        return [name for name, state in self._states.items() if state.due is not None and state.due <= now]

    async def until_due(self, at_last: float | None) -> None:
        """Returns when a pool is due, or at the given time, or soon after a ``look``."""
        times = [state.due for state in self._states.values() if state.due is not None]
        if at_last is not None:
            times.append(at_last)
        waiters = [asyncio.create_task(self._wait_for_wake())]
        if times:
            waiters.append(asyncio.create_task(self._clock.sleep(min(times) - self._clock.monotonic())))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            await asyncio.gather(*waiters, return_exceptions=True)
        self._wake.clear()

    async def until_woken(self) -> None:
        """Returns soon after a ``look``."""
        await self._wake.wait()
        self._wake.clear()

    async def _wait_for_wake(self) -> None:
        await self._wake.wait()
