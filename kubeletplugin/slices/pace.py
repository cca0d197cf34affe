"""How soon what others did to a pool is repaired: at once, until it looks like a fight.

A kubelet wipes the slices at its start, once or twice, and the node gets no pods until they are back: nothing may
delay that. But a webhook that changes whatever we write, or a second driver of the same name, would have us write for
ever as fast as the server answers. So repairs come out of a stock that refills slowly.
"""

BURST = 20
"""Repairs without delay."""
CHANGES_REFILL_SECONDS = 30.0
"""Per repair once the stock is used up: a cluster whose every node is in such a fight does its server no harm."""
DELETIONS_REFILL_SECONDS = 5.0
"""No kubelet starts more often than that, so that its wipes are never waited with, however often it crashes."""


class RepairPace:
    """Of one kind of change to one pool. Times are of Clock.monotonic()."""

    def __init__(self, refill_seconds: float) -> None:
        self.refill_seconds = refill_seconds
        self._left = float(BURST)
        self._counted_at = 0.0
        self._told = False

    def earliest(self, now: float) -> float:
        """When the next repair may begin."""
        return now + max(0.0, 1.0 - self._stock(now)) * self.refill_seconds

    def repaired(self, now: float) -> bool:
        """Counts a repair that begins now. True when it is the one that uses up the stock: the time to say so, once
        until there was quiet for long enough to fill it again."""
        stock = self._stock(now)
        self._told = self._told and stock < BURST
        self._left, self._counted_at = max(0.0, stock - 1.0), now
        first = self._left < 1.0 and not self._told
        self._told = self._told or first
        return first

    def _stock(self, now: float) -> float:
        return min(float(BURST), self._left + (now - self._counted_at) / self.refill_seconds)
