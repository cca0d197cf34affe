"""A reflector on a virtual clock, and what it told."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from kubeapi.client import RESOURCE_SLICES, Json
from kubeapi.reflector import Change, Reflector
from tests.fakes.clock import VirtualClock
from tests.unit.kubeapi.storeapi import StoreApi


class Rig:
    """A reflector, its server, and what a subscriber was told."""

    def __init__(
        self, *, page_size: int = 500, silence: float = 100.0, keep: Callable[[Json], Json] = lambda body: body
    ) -> None:
        self.api = StoreApi()
        self.clock = VirtualClock()
        self._make = functools.partial(
            Reflector,
            self.api,
            RESOURCE_SLICES,
            clock=self.clock,
            page_size=page_size,
            silence=silence,
            rng=random.Random(1),
            keep=keep,
        )
        self.told: list[str] = []
        self.reflector = self._make()
        self.reflector.subscribe(self._note)

    def start_from(self, state: Json) -> None:
        self.reflector = self._make(start=state)
        self.reflector.subscribe(self._note)

    def _note(self, change: Change) -> None:
        self.told.append(f"{change.type} {change.object['metadata']['name']}{change.object.get('note', '')}")

    def news(self) -> list[str]:
        told, self.told = self.told, []
        return told

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reflector.run())
        await self.clock.settle()
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
