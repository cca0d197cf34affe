"""How often something may be done, whatever happens."""

from kubeletplugin.clock import Clock


class Budget:
    """``most`` times at once, then once each ``seconds``."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self._clock = clock
        self._most = float(most)
        self._seconds = seconds
        self._left = self._most
        self._left_at = clock.monotonic()

    def has(self, count: int = 1) -> bool:
        """Whether ``take`` would succeed. More than ``most`` is had when nothing was taken for a while."""
        now = self._clock.monotonic()
        self._left = min(self._most, self._left + (now - self._left_at) / self._seconds)
        self._left_at = now
        return self._left >= min(float(count), self._most)

    def take(self, count: int = 1) -> bool:
        if not self.has(count):
            return False
        self._left -= count
        return True
