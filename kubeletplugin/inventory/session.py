"""The NVML session that the inventory lives on: begun late, begun anew.

NVML fixes the set of GPUs when it is initialised and goes stale with the driver, so a driver that comes late, is
reloaded or upgraded, and a GPU that was added or lost all end in the same cure: end the session and begin another.
That costs every other user of the session its handles, so the cure is tried ever more rarely for a cause that it
didn't cure for good.

A session isn't ended while any call is inside NVML: the shutdown would wait for a call that hangs, and every later
call for the shutdown, so that one dead GPU would take its neighbours along.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kubeletplugin.clock import Clock
from kubeletplugin.inventory.probe import Workers
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.worker import SYSTEM_KEY

log = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
RENEW_SECONDS_MAX = 600.0
"""Between two renewals for a cause that the last one didn't cure (a GPU that stays lost)."""

QUIET_SECONDS = 600.0
"""For each such time that a cause is absent its pause is halved: a GPU that comes and goes is as rare as one that stays
lost, and one that was mended gets its quick cure back."""


class SessionWorkers(Workers, Protocol):
    @property
    def busy(self) -> bool:
        """Whether any call is inside NVML now."""


@dataclass(slots=True)
class _Cause:
    seen: float
    not_before: float
    pause: float = RENEW_SECONDS

    def see(self, now: float) -> None:
        for _ in range(int((now - self.seen) // QUIET_SECONDS)):
            self.pause = max(self.pause / 2, RENEW_SECONDS)
        self.seen = now

    def take(self, now: float) -> None:
        self.not_before = now + self.pause
        self.pause = min(self.pause * 2, RENEW_SECONDS_MAX)


class NvmlSession:
    """Owns ``init`` and ``shutdown`` of one Nvml."""

    def __init__(self, nvml: Nvml, workers: SessionWorkers, clock: Clock) -> None:
        self._nvml = nvml
        self._workers = workers
        self._clock = clock
        self._open = False
        self._causes: dict[str, _Cause] = {}
        self.generation = 0
        """Grows with every beginning: handles and event sets of an older generation are void."""

    async def ensure(self) -> None:
        """Raises NvmlError while the library or the driver isn't there."""
        if not self._open:
            await self._workers.call(SYSTEM_KEY, self._begin)

    async def end(self) -> bool:
        """Whether it is over; it isn't while a call is inside NVML. Never raises: a session that is void is as good as
        ended."""
        if self._open and not self._workers.busy:
            try:
                await self._workers.call(SYSTEM_KEY, self._finish)
            except NvmlError as error:
                log.debug("end the NVML session: %s", error)
        return not self._open

    async def renew(self) -> bool:
        """False when the session stays as it is, because it can't be ended now."""
        if not await self.end():
            return False
        await self.ensure()
        return True

    def why_renew(self, causes: Mapping[str, str]) -> str:
        """The text of one of ``causes`` (what they are known by, to their text) that it is time to try the cure for:
        at once for a new one, then ever more rarely. An answer takes the turn for all of them."""
        now = self._clock.monotonic()
        for key in causes:
            self._causes.setdefault(key, _Cause(now, now)).see(now)
        if self._workers.busy:
            return ""
        due = next((text for key, text in causes.items() if self._causes[key].not_before <= now), "")
        if due:
            for key in causes:
                self._causes[key].take(now)
        return due

    # In the worker's thread, so that a call that outlives its deadline still leaves the truth behind.
    def _begin(self) -> None:
        self._nvml.init()
        self._open = True
        self.generation += 1

    def _finish(self) -> None:
        try:
            self._nvml.shutdown()
        finally:
            self._open = False
