"""Time as the agent sees it, so that tests run on a virtual clock."""

import asyncio
import datetime
import time
from typing import Protocol


class Clock(Protocol):
    """What timed code may ask for. ``monotonic`` and ``sleep`` are in seconds and agree with each other."""

    def monotonic(self) -> float: ...

    def now(self) -> datetime.datetime:
        """Wall time, UTC, time-zone aware: for display and API fields, never for measuring."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
