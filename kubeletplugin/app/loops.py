"""Work that goes on for as long as this instance is active, and ends with that or with the lease.

A failure that nobody foresaw is shown and the work begun anew: an agent without it must not look well, nor end for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

RESTART_SECONDS = 5.0
SOUND_SECONDS = 60.0
"""Work that went well for so long fails for a reason of its own."""


class Loops:
    def __init__(self, clock: Clock, lost: Callable[[], Awaitable[bool]]) -> None:
        """``lost`` tells a lease that is another's by now from one that was busy for a moment."""
        self._clock = clock
        self._lost = lost
        self._tasks: list[asyncio.Task[None]] = []
        self.troubles = Troubles(log)

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        return self.once(name, self._again_and_again(name, work))

    def once(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work that may end, and fails for good when it fails."""
        task = asyncio.create_task(work, name=name)
        self._tasks.append(task)
        return task

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _again_and_again(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            begun = self._clock.monotonic()
            try:
                await work()
            except NotActiveError:
                if await self._lost():
                    return
                log.warning("%s: the lease was busy, beginning anew in %g s", name, RESTART_SECONDS)
            except Exception as error:
                if self._clock.monotonic() - begun >= SOUND_SECONDS:
                    self.troubles.forget(name)
                self.troubles.failed(name, error)
            await self._clock.sleep(RESTART_SECONDS)
