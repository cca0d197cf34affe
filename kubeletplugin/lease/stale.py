"""When a heartbeat is over: the same value in several looks in a row, by a looker that itself ran.

Clocks of two processes are never compared, and no time is read from the file. A look that comes much too late says
that the looker (or the whole machine) was stopped, so counting begins anew: after a pause of the machine both sides
see a few looks first.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from kubeletplugin.clock import Clock


@dataclass(frozen=True, slots=True)
class StaleTiming:
    """Seconds; ``interval`` is the least distance of two looks that count, ``pause`` the most."""

    looks: int = 6
    interval: float = 1.0
    pause: float = 3.0


class StaleDetector:
    def __init__(self, clock: Clock, timing: StaleTiming | None = None) -> None:
        self._clock = clock
        self._timing = timing or StaleTiming()
        self._value: Hashable = None
        self._count = 0
        self._last = 0.0

    def look(self, value: Hashable) -> bool:
        """Records one look; True when ``value`` has stood still for long enough. Looks may come more often."""
        now = self._clock.monotonic()
        gap = now - self._last
        if self._count == 0 or value != self._value or gap > self._timing.pause:
            self._value, self._count, self._last = value, 1, now
        elif gap >= self._timing.interval:
            self._count += 1
            self._last = now
        return self._count >= self._timing.looks
