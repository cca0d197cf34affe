"""The ledger's file, from the take-over on: opened, set aside and begun anew when it is damaged, and watched.

A ledger that is found damaged under way can't be relied on from then on, nor can what was decided by it: the instance
steps back, and its next take-over (or another instance's) sets the file aside and takes in what is prepared from the
kubelet's list and the devices (prepare.strays).
"""

import asyncio
import functools
import logging
from collections.abc import Callable
from pathlib import Path

from kubeletplugin import crashpoints
from kubeletplugin.app.files.file_watch import FileWatch
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.clock import Clock
from kubeletplugin.errors import RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.ledger import files
from kubeletplugin.ledger.errors import LedgerDamagedError
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.supervision import together

log = logging.getLogger(__name__)


class LedgerFile:
    """Implements ledger.store.LedgerObserver. ``on_damage`` is called once for each ledger that is lost under way."""

    def __init__(
        self, path: Path, lease: Lease, clock: Clock, notices: NodeNotices, on_damage: Callable[[str], None]
    ) -> None:
        self._path = path
        self._lease = lease
        self._clock = clock
        self._notices = notices
        self._on_damage = on_damage
        self._damage = ""
        self._loop = asyncio.get_running_loop()

    async def open(self, epoch: int) -> Ledger:
        """Errors as of Ledger.open, but for LedgerDamagedError."""
        fence = self._lease.fence(epoch)
        opened = functools.partial(
            Ledger.open, self._path, fence=fence, boot_id=self._lease.boot_id, epoch=epoch, observer=self
        )
        damage = self._damage
        if not damage:
            try:
                ledger = await opened()
            except LedgerDamagedError as error:
                damage = str(error)
            else:
                if ledger.is_new and epoch > 1:
                    self._notices.ledger_missing(self._path)
                return ledger
        stamp = self._clock.now().strftime("%Y%m%dT%H%M%SZ")
        aside = await asyncio.to_thread(files.set_aside, self._path, stamp, fence)
        crashpoints.reached("takeover.set-aside")
        self._damage = ""
        self._notices.ledger_damaged(damage, aside)
        return await opened()

    async def keep(self, ledger: Ledger) -> None:
        """Looks at the file whenever somebody wrote to it or its log, moved or took away one of them."""
        watch = FileWatch(self._path, ["-wal"])
        await together(watch.run(), self._check_changes(watch, ledger))

    async def _check_changes(self, watch: FileWatch, ledger: Ledger) -> None:
        while True:
            await watch.changed.wait()
            watch.changed.clear()
            await self._check(ledger)

    async def _check(self, ledger: Ledger) -> None:
        try:
            await ledger.check()
        except RecoverableError as error:
            log.debug("check the ledger: %s", error)  # whoever needs it meets the same, and tells

    # --- ledger.store.LedgerObserver ---
    def ledger_rescued(self, note: str) -> None:
        self._loop.call_soon_threadsafe(self._notices.ledger_rescued, note)

    def ledger_damaged(self, problem: str) -> None:
        if not self._damage:
            self._damage = problem
            self._on_damage("the ledger is damaged")
