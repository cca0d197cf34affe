"""How long to wait before the next try, and the clock to wait on.

Delays grow so that a server in trouble gets air, and are spread at random so that the agents of a thousand nodes,
all cut off at the same moment, don't come back at the same moment.
"""

import datetime
import random
from typing import Protocol


class Clock(Protocol):
    """The time that this package needs; any clock of the agents fits. Seconds; ``monotonic`` and ``sleep`` agree."""

    def monotonic(self) -> float: ...

    def now(self) -> datetime.datetime: ...

    async def sleep(self, seconds: float) -> None: ...


class Backoff:
    """Exponential delays in seconds; each is drawn between half of its nominal length and the whole of it."""

    def __init__(
        self,
        *,
        initial: float = 0.2,
        maximum: float = 30.0,
        factor: float = 2.0,
        rng: random.Random | None = None,
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._factor = factor
        self._rng = rng if rng is not None else random.Random()
        self._nominal = initial

    def next(self, at_least: float | None = None) -> float:
        """The delay before the next try, never below ``at_least`` (a server's Retry-After)."""
        delay = self._nominal * self._rng.uniform(0.5, 1.0)
        self._nominal = min(self._nominal * self._factor, self._maximum)
        return max(delay, at_least or 0.0)

    def reset(self) -> None:
        """A try succeeded: the next failure starts from the shortest delay."""
        self._nominal = self._initial
