"""A loop that stands still ends the process; one that moves doesn't."""

import asyncio
import threading
import time

import pytest

from kubeletplugin.clock import SystemClock
from kubeletplugin.lease.watchdog import EXIT_STATUS, Watchdog, WatchdogTiming

pytestmark = pytest.mark.anyio

TIMING = WatchdogTiming(interval=0.004, misses=4)


class Exit:
    def __init__(self) -> None:
        self.status: int | None = None
        self.called = threading.Event()

    def __call__(self, status: int) -> None:
        self.status = status
        self.called.set()


async def test_a_loop_that_stands_still_ends_the_process_with_its_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    end = Exit()
    watchdog = Watchdog(SystemClock(), TIMING, end)
    watchdog.start()
    await asyncio.sleep(0.01)
    end.called.wait(10)
    watchdog.stop()
    assert end.status == EXIT_STATUS
    assert "test_watchdog.py" in capfd.readouterr().err


async def test_a_loop_that_moves_is_left_alone() -> None:
    end = Exit()
    watchdog = Watchdog(SystemClock(), WatchdogTiming(interval=0.002, misses=1000), end)
    watchdog.start()
    await asyncio.sleep(0.03)
    watchdog.stop()
    assert not end.called.is_set()


async def test_it_watches_only_from_start_to_stop() -> None:
    end = Exit()
    watchdog = Watchdog(SystemClock(), TIMING, end)
    watchdog.start()
    watchdog.stop()
    time.sleep(0.04)  # noqa: ASYNC251 - blocks the loop on purpose
    assert not end.called.is_set()
    watchdog.start()
    end.called.wait(10)
    watchdog.stop()
    assert end.status == EXIT_STATUS
