"""The newest value of something, for any number of readers that each go at their own pace.

Values in between are skipped on purpose: a reader that was busy wants the state as it is, not its history.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Set and followed on one event loop."""

    def __init__(self) -> None:
        self._value: T | None = None
        self._version = 0
        self._next = asyncio.Event()

    @property
    def value(self) -> T | None:
        """None before the first ``set``."""
        return self._value

    def set(self, value: T) -> None:
        self._value = value
        self._version += 1
        reached, self._next = self._next, asyncio.Event()
        reached.set()

    async def follow(self) -> AsyncIterator[T]:
        """The value there is, then the newest one after each change, for ever."""
        seen = 0
        while True:
            if self._version == seen:
                await self._next.wait()
                continue
            seen = self._version
            assert self._value is not None
            yield self._value
