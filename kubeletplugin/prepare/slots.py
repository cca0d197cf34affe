"""One queue per claim, in one process: whoever touches a claim waits for its turn, in the order of arrival.

There is no lock per GPU: the ledger's commit looks for conflicts and writes in one transaction, and a wait for a GPU
must let the old holder's Unprepare through.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Slot:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class ClaimTurns:
    def __init__(self) -> None:
        self._slots: dict[str, _Slot] = {}

    def busy(self, uid: str) -> bool:
        """Somebody has the claim or waits for it. When not, ``turn`` is entered without waiting."""
        return uid in self._slots

    @asynccontextmanager
    async def turn(self, uid: str) -> AsyncIterator[None]:
        slot = self._slots.setdefault(uid, _Slot())
        slot.users += 1
        try:
            async with slot.lock:
                yield
        finally:
            slot.users -= 1
            if slot.users == 0:
                del self._slots[uid]
