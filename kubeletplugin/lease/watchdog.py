"""Ends the process when its event loop stands still: a hung active instance is worse than a dead one.

The kubelet doesn't fail over from an instance that hangs, but does at once from one that is gone. A thread counts its
own wake-ups in which the loop made no progress, so a process that was stopped as a whole isn't blamed for it. What
stops the thread too (SIGSTOP, a call that keeps the interpreter's lock) is the livenessProbe's to end.
"""

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kubeletplugin.clock import Clock

log = logging.getLogger(__name__)

EXIT_STATUS = 70
"""EX_SOFTWARE of sysexits.h."""


@dataclass(frozen=True, slots=True)
class WatchdogTiming:
    """Seconds; the process ends after ``misses`` checks without progress."""

    interval: float = 1.0
    misses: int = 10


class Watchdog:
    """Watches from ``start`` to ``stop``, both called on the event loop that is watched."""

    def __init__(
        self,
        clock: Clock,
        timing: WatchdogTiming | None = None,
        end_process: Callable[[int], None] = os._exit,
    ) -> None:
        self._clock = clock
        self._timing = timing or WatchdogTiming()
        self._end_process = end_process
        self._beats = 0
        self._stopped = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is not None:
            return
        self._stopped = threading.Event()
        self._task = asyncio.create_task(self._beat(), name="watchdog")
        threading.Thread(target=self._watch, args=(self._stopped,), name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _beat(self) -> None:
        while True:
            self._beats += 1
            await self._clock.sleep(self._timing.interval / 2)

    def _watch(self, stopped: threading.Event) -> None:
        seen, misses = -1, 0
        while not stopped.wait(self._timing.interval):
            beats = self._beats
            misses = misses + 1 if beats == seen else 0
            seen = beats
            if misses >= self._timing.misses:
                log.critical("end the process: its event loop stands still, stacks follow on stderr")
                faulthandler.dump_traceback(all_threads=True)
                self._end_process(EXIT_STATUS)
                return
