"""The slice controller on a virtual clock, with an API server in memory."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from kubeapi.client import Json
from kubeapi.errors import ApiError, Invalid
from kubeletplugin.slices.controller import SliceController
from tests.fakes.clock import VirtualClock
from tests.unit.slices.memory import MemoryApi, Recorder
from tests.unit.slices.samples import DRIVER, NODE, content_of, summary


class HalfRandom:
    """Every draw in the middle, so that delays are known."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def randint(self, low: int, high: int) -> int:
        return (low + high) // 2


@dataclass
class World:
    clock: VirtualClock
    api: MemoryApi
    controller: SliceController
    observer: Recorder

    def want(self, *devices: Json) -> None:
        self.controller.set_pools({NODE: content_of(*devices)})

    async def pass_time(self, seconds: float = 0.0) -> None:
        await self.clock.advance(seconds)

    def accepted(self) -> bool:
        return self.controller.accepted

    @property
    def slices(self) -> list[str]:
        return summary(self.api.slices)

    def calls_since(self, count: int) -> list[str]:
        return [call.split()[0] for call in self.api.calls[count:]]


@contextlib.asynccontextmanager
async def world(*initial: Json, start: bool = True) -> AsyncIterator[World]:
    clock, api, observer = VirtualClock(), MemoryApi(), Recorder()
    api.put(*initial)
    rng: Any = HalfRandom()
    it = World(clock, api, SliceController(api, NODE, DRIVER, clock, observer, rng), observer)
    if start:
        it.controller.start()
        await it.pass_time()
    try:
        yield it
    finally:
        await it.controller.stop()


def refuse(*verbs: str, error: ApiError) -> Any:
    return lambda verb, body: error if verb in verbs else None


INVALID = Invalid(422, "Invalid", "denied by a policy")
