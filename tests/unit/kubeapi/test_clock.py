"""The virtual clock that the other tests trust."""

import asyncio

import pytest

from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


async def test_sleepers_wake_in_order_at_their_own_time() -> None:
    clock = VirtualClock(start=0.0)
    seen: list[tuple[str, float]] = []

    async def every(name: str, seconds: float) -> None:
        while True:
            await clock.sleep(seconds)
            seen.append((name, clock.monotonic()))

    tasks = [asyncio.create_task(every("slow", 3)), asyncio.create_task(every("fast", 2))]
    await clock.advance(6)
    assert seen == [("fast", 2), ("slow", 3), ("fast", 4), ("slow", 6), ("fast", 6)]
    assert clock.monotonic() == 6
    assert clock.sleeping == 2
    for task in tasks:
        task.cancel()
    await clock.settle()
    assert clock.sleeping == 0
    assert clock.next_due is None


async def test_wall_time_moves_along() -> None:
    clock = VirtualClock()
    before = clock.now()
    await clock.advance(90)
    assert (clock.now() - before).total_seconds() == 90
