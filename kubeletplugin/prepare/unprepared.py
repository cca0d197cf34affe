"""Claims whose Unprepare was answered just now.

The kubelet lists such a claim for a moment longer. Who takes the list at its word then, by preparing the claim again or
by taking it in, leaves a hold that only a check ends.
"""

from kubeletplugin.clock import Clock

SETTLE_SECONDS = 10.0


class LatelyUnprepared:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def add(self, uid: str) -> None:
        now = self._clock.monotonic()
        self._at = {known: at for known, at in self._at.items() if now - at < SETTLE_SECONDS}
        self._at[uid] = now

    def __contains__(self, uid: str) -> bool:
        at = self._at.get(uid)
        return at is not None and self._clock.monotonic() - at < SETTLE_SECONDS
