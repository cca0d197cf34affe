"""Wake-ups for those who wait: by GPU, by claim, or for the inventory.

A waiter listens before it looks, so that what happens between its look and its wait isn't missed, and is woken only
by what it waits for: with 32 pods waiting for 8 GPUs, one release wakes those that want this GPU.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kubeletplugin.clock import Clock

INVENTORY = "inventory"


def claim_key(uid: str) -> str:
    return f"claim {uid}"


class Bells:
    """Keys are GPU UUIDs, ``claim_key``s and INVENTORY."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._subscribers: list[Callable[[Collection[str]], None]] = []

    def ring(self, keys: Collection[str]) -> None:
        for key in keys:
            for event in self._listeners.get(key, ()):
                event.set()
        for callback in self._subscribers:
            callback(keys)

    def subscribe(self, callback: Callable[[Collection[str]], None]) -> Callable[[], None]:
        """Called with the keys of every ring; it must return at once and not raise. Returns what ends it."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    @contextmanager
    def listen(self, keys: Iterable[str]) -> Iterator[asyncio.Event]:
        """The event is set by the first ring for any of ``keys``."""
        event = asyncio.Event()
        wanted = tuple(dict.fromkeys(keys))
        for key in wanted:
            self._listeners[key].add(event)
        try:
            yield event
        finally:
            for key in wanted:
                self._listeners[key].discard(event)
                if not self._listeners[key]:
                    del self._listeners[key]

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Until the event is set, at most ``seconds``."""
        await wait_for_any(self._clock, asyncio.ensure_future(event.wait()), seconds, cancel=True)


async def wait_for_any(clock: Clock, task: "asyncio.Future[Any]", seconds: float, *, cancel: bool = False) -> bool:
    """Waits for ``task``, at most ``seconds`` of ``clock``; True when it is done. Its outcome is left in it."""
    if task.done():
        return True
    sleeper = asyncio.ensure_future(clock.sleep(max(seconds, 0.0)))
    try:
        await asyncio.wait((task, sleeper), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        sleeper.cancel()
        if cancel:
            task.cancel()
