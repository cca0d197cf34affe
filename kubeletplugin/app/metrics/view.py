"""What a scrape sees of the node. Reading it takes a bounded time: a ledger that is busy, or a disk that hangs, costs
a scrape the second that it waits, after which it shows what was read before and how old that is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import Snapshot

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0
"""A scrape's own limit is 10 s by default, and its other series shouldn't wait for the ledger's."""


@dataclass(frozen=True, slots=True)
class LedgerView:
    """``waiting``: claims that are being prepared."""

    snapshot: Snapshot
    size_bytes: int
    waiting: int


@dataclass(frozen=True, slots=True)
class AgentView:
    """What needs no waiting. ``epoch`` is None while this instance isn't active. ``inventory`` is the hardware as it
    was seen, ``offered`` the same with what is withheld for other reasons, too."""

    instance: str
    node: str
    ready: bool
    registered: bool
    epoch: int | None
    slices_accepted: bool
    inventory: Inventory | None
    offered: Inventory | None
    events_written: int
    events_dropped: int


class LedgerViews:
    """Reads one at a time; a reading that outlasts its scrape is what the next one gets."""

    def __init__(self, read: Callable[[], Awaitable[LedgerView | None]], clock: Clock) -> None:
        """``read`` answers None while this instance isn't active."""
        self._read = read
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._epoch: int | None = None
        self._view: LedgerView | None = None
        self._read_at = 0.0

    @property
    def view(self) -> LedgerView | None:
        return self._view

    @property
    def age(self) -> float:
        """Seconds since ``view`` was read."""
        return self._clock.monotonic() - self._read_at

    async def refresh(self, epoch: int | None) -> None:
        """Never raises. What was read in another epoch is nobody's any more."""
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch
        if epoch is None:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._take(), name="read the ledger for a scrape")
        await asyncio.wait([self._reading], timeout=PATIENCE_SECONDS)

    def forget(self) -> None:
        self._view = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _take(self) -> None:
        begun = self._clock.monotonic()
        try:
            self._view, self._read_at = await self._read(), begun
        except (RecoverableError, NotActiveError) as error:
            log.debug("read the ledger for a scrape: %s", error)
        except Exception:
            log.exception("read the ledger for a scrape")
