"""The NVML session that the inventory lives on: begun late, begun anew.

NVML fixes the set of GPUs when it is initialised and goes stale with the driver, so a driver that comes late, is
reloaded or upgraded, and a GPU that was added or lost all end in the same cure: end the session and begin another.
That costs every other user of the session its handles, so a cure that didn't help is tried again ever more rarely.
"""

import logging

from kubeletplugin.clock import Clock
from kubeletplugin.inventory.probe import Workers
from kubeletplugin.nvml.api import Nvml
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.worker import SYSTEM_KEY

log = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
RENEW_SECONDS_MAX = 600.0
"""Between two renewals for a reason that the last one didn't cure (a GPU that stays lost)."""


class NvmlSession:
    """Owns ``init`` and ``shutdown`` of one Nvml."""

    def __init__(self, nvml: Nvml, workers: Workers, clock: Clock) -> None:
        self._nvml = nvml
        self._workers = workers
        self._clock = clock
        self._open = False
        self._wait = RENEW_SECONDS
        self._not_before = 0.0
        self._cause = ""
        self.generation = 0
        """Grows with every beginning: handles and event sets of an older generation are void."""

    async def ensure(self) -> None:
        """Raises NvmlError while the library or the driver isn't there."""
        if not self._open:
            await self._workers.call(SYSTEM_KEY, self._nvml.init)
            self._open = True
            self.generation += 1

    async def end(self) -> None:
        """Never raises: a session that is void is as good as ended."""
        if not self._open:
            return
        self._open = False
        try:
            await self._workers.call(SYSTEM_KEY, self._nvml.shutdown)
        except NvmlError as error:
            log.debug("end the NVML session: %s", error)

    async def renew(self) -> None:
        await self.end()
        await self.ensure()

    def may_renew(self, cause: str) -> bool:
        """Whether it is time to try the cure: at once for a new ``cause``, then ever more rarely. Asking takes the
        turn."""
        if cause != self._cause:
            self.cured()
            self._cause = cause
        if self._clock.monotonic() < self._not_before:
            return False
        self._not_before = self._clock.monotonic() + self._wait
        self._wait = min(self._wait * 2, RENEW_SECONDS_MAX)
        return True

    def cured(self) -> None:
        """Nothing calls for a renewal any more."""
        self._cause = ""
        self._wait = RENEW_SECONDS
        self._not_before = 0.0
