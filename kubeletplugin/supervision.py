"""Standing work: what has to go on for as long as its owner does, and is begun anew whenever it ends by itself.

A task that died unseen leaves an agent that looks well and isn't, so nothing that stands is a bare task: it is kept by
a Supervisor, and work that needs other work beside it fails with it (``together``). A failure is told once while it
lasts; the work goes on without a person.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.troubles import Troubles

RESTART_SECONDS = 5.0
SOUND_SECONDS = 60.0
"""Work that went well for so long fails for a reason of its own."""

Work = Callable[[], Coroutine[Any, Any, None]]


async def _never() -> bool:
    return False


class Supervisor:
    """``lost`` tells a lease that is lost for good from one that couldn't be held for a moment; it must not raise."""

    def __init__(self, clock: Clock, troubles: Troubles, lost: Callable[[], Awaitable[bool]] = _never) -> None:
        self._clock = clock
        self._troubles = troubles
        self._lost = lost
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Work, *, once: bool = False) -> asyncio.Task[None]:
        """``keep`` in a task: until it is cancelled, ``stop`` is called or the lease is lost. Works of one name are one
        to a reader."""
        task = asyncio.create_task(self._until_lost(name, work, once), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Returns when all have ended. Raises nothing of theirs."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def keep(self, name: str, work: Work, *, once: bool = False) -> None:
        """For ever, ``once`` until it has succeeded; raises NotActiveError when the lease is lost."""
        while True:
            begun = self._clock.monotonic()
            try:
                await work()
                if once:
                    return
                failure: Exception = RecoverableError("ended by itself; it is begun anew")
            except asyncio.CancelledError:
                _end_if_cancelled()
                failure = RecoverableError("what it waited for was cancelled; it is begun anew")
            except Exception as error:
                _end_if_cancelled()
                if isinstance(error, NotActiveError) and await self._lost():
                    raise
                failure = error
            if self._clock.monotonic() - begun >= SOUND_SECONDS:
                self._troubles.forget(name)
            self._troubles.failed(name, failure)
            await self._clock.sleep(RESTART_SECONDS)

    async def _until_lost(self, name: str, work: Work, once: bool) -> None:
        try:
            await self.keep(name, work, once=once)
        except NotActiveError:
            return


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Until the first of them ends, however it does: then the others are cancelled and its outcome is this one's."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


def _end_if_cancelled() -> None:
    """Work that was cancelled may fail while it cleans up; it has to end all the same."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise asyncio.CancelledError
