"""Puts back CDI files of ours that somebody else has removed or written into, as soon as it happens.

Without its file no container of a claim can start, and a clean-up script, a reboot helper or another driver's
uninstaller empties a CDI folder in one go. Every prepared claim's file can be made from its row at any time, and the
driver's from the host. Files of others are theirs, broken or not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Protocol

from kubeletplugin.app.files.file_watch import HarmWatch
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.cdi.claims import claim_of
from kubeletplugin.cdi.driver import DRIVER_FILE
from kubeletplugin.clock import Clock
from kubeletplugin.supervision import together

PAUSE_SECONDS = 0.2
"""Between two passes: one that empties the folder again and again must not keep a core busy."""

SILENT_SECONDS = 60.0
"""After people were told; twice as long each time: who empties the folder in a loop is one story, not a line a pass."""
MOST_SILENT_SECONDS = 3600.0

MendClaims = Callable[[Collection[str] | None], Awaitable[int]]


class DriverSpec(Protocol):
    """Blocking; see app.files.cdi_specs.HostSpecs."""

    def restore(self) -> bool: ...


class SpecKeeper:
    def __init__(
        self,
        folder: Path,
        prefix: str,
        driver: DriverSpec,
        mend_claims: MendClaims,
        notices: NodeNotices,
        clock: Clock,
    ) -> None:
        """Of files in ``folder`` whose names begin with ``prefix``. ``mend_claims`` gets UIDs, None for all claims, and
        returns how many files it made or changed."""
        self._folder = folder
        self._prefix = prefix
        self._driver = driver
        self._mend_claims = mend_claims
        self._notices = notices
        self._clock = clock
        self._told = float("-inf")
        self._silence = SILENT_SECONDS

    async def run(self) -> None:
        """For ever; raises NotActiveError and RecoverableError."""
        watch = HarmWatch(self._folder, self._prefix)
        await together(watch.run(), self._mend_changes(watch))

    async def _mend_changes(self, watch: HarmWatch) -> None:
        while True:
            await watch.changed.wait()
            names = watch.take()
            try:
                await self._mend(names)
            except BaseException:
                watch.take_again()
                raise
            await self._clock.sleep(PAUSE_SECONDS)

    async def _mend(self, names: Collection[str] | None) -> None:
        driver = False
        if names is None or DRIVER_FILE in names:
            driver = await asyncio.to_thread(self._driver.restore)
        uids = None if names is None else {uid for name in names if (uid := claim_of(name))}
        claims = await self._mend_claims(uids) if uids is None or uids else 0
        if driver or claims:
            self._tell(driver, claims)

    def _tell(self, driver: bool, claims: int) -> None:
        now = self._clock.monotonic()
        past = now - self._told
        if past < self._silence:
            return
        lasting = past < 2 * self._silence
        self._silence = min(2 * self._silence, MOST_SILENT_SECONDS) if lasting else SILENT_SECONDS
        self._told = now
        self._notices.files_restored(self._folder, driver, claims)
