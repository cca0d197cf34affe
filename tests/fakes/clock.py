"""A clock that moves only when a test says so."""

import asyncio
import datetime
import heapq
import itertools

_SETTLE_ROUNDS = 50
"""Turns of the event loop given to tasks that became ready: enough for chains of awaits without any I/O."""


class VirtualClock:
    """Implements kubeletplugin.clock.Clock (and kubeapi.backoff.Clock).

    ``sleep`` parks its caller until ``advance`` has moved the time past its end. ``advance`` wakes sleepers in the
    order of their due times, at exactly those times, and lets the woken tasks run before it moves on, so a task that
    sleeps again within the span is woken again within the same call. The span's end is reached exactly.
    """

    def __init__(self, start: float = 1000.0, epoch: datetime.datetime | None = None) -> None:
        self._start = start
        self._now = start
        self._epoch = epoch or datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._slept = asyncio.Event()

    def monotonic(self) -> float:
        return self._now

    def now(self) -> datetime.datetime:
        return self._epoch + datetime.timedelta(seconds=self._now - self._start)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        self._slept.set()
        await future

    @property
    def sleeping(self) -> int:
        """Tasks that wait for the time to move."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def until_asleep(self, tasks: int = 1) -> None:
        """Waits, in real time, until so many tasks sleep: for those that do I/O before they do."""
        while self.sleeping < tasks:
            self._slept.clear()
            await self._slept.wait()

    @property
    def next_due(self) -> float | None:
        """Seconds until the first sleeper is due; None without sleepers."""
        due = [when for when, _, future in self._sleepers if not future.done()]
        return min(due) - self._now if due else None

    async def settle(self, rounds: int = _SETTLE_ROUNDS) -> None:
        """Lets all ready tasks run without moving the time."""
        for _ in range(rounds):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        await self.settle()
        end = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():
                continue
            self._now = max(self._now, due)
            future.set_result(None)
            await self.settle()
        self._now = end
        await self.settle()
