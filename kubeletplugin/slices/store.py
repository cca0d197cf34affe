"""The server's slices of this node as far as known: what the watch told, plus our own writes that it hasn't told yet.

Without the second part a slice would be created twice: the watch lags behind, the next look finds the slice missing.
An own write that the watch never shows (created, then deleted before a new list) counts no longer after a minute,
when whoever keeps this looks again.

``told`` returns the pool's name only for news: the echo of an own write isn't any, or a write that fails halfway
would wake itself up for ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kubeapi.client import Json
from kubeapi.reflector import Change
from kubeletplugin.clock import Clock

OWN_WRITE_SECONDS = 60.0
"""How long an own write counts without being seen; a watch that lags by more is as good as none."""


@dataclass(frozen=True, slots=True)
class _OwnWrite:
    stored: Json
    until: float


class SliceStore:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, Json] = {}
        self._own: dict[str, _OwnWrite] = {}
        self._removed: dict[str, float] = {}

    def pools(self) -> frozenset[str]:
        return frozenset(_pool(item) for item in self._all())

    def in_pool(self, pool: str) -> Sequence[Json]:
        return [item for item in self._all() if _pool(item) == pool]

    def told(self, change: Change) -> str | None:
        """Takes a change from the watch; the pool it concerns, None when it is no news."""
        body = change.object
        name, uid = body["metadata"]["name"], body["metadata"]["uid"]
        own = self._own.get(name)
        if change.type == "DELETED":
            self._seen.pop(name, None)
            self._own.pop(name, None)
            return None if self._removed.pop(uid, None) is not None else _pool(body)
        self._seen[name] = body
        if own is None:
            return None if uid in self._removed else _pool(body)
        if _is_older(body, own.stored):
            return None
        del self._own[name]
        return None if _version(body) == _version(own.stored) else _pool(body)

    def wrote(self, stored: Json) -> None:
        """The server's answer to an own create or update."""
        name = stored["metadata"]["name"]
        if name in self._seen and not _is_older(self._seen[name], stored):
            return
        self._own[name] = _OwnWrite(stored, self._clock.monotonic() + OWN_WRITE_SECONDS)

    def removed(self, existing: Json) -> None:
        """Counts as gone from now on, until the watch says so too or a minute has passed without it."""
        self._removed[existing["metadata"]["uid"]] = self._clock.monotonic() + OWN_WRITE_SECONDS

    def not_removed(self, existing: Json) -> None:
        self._removed.pop(existing["metadata"]["uid"], None)

    def expire(self) -> frozenset[str]:
        """Forgets own writes that were not seen in time; the pools that have to be looked at again."""
        now = self._clock.monotonic()
        late = {name: own for name, own in self._own.items() if own.until <= now}
        for name in late:
            del self._own[name]
        self._removed = {uid: until for uid, until in self._removed.items() if until > now}
        return frozenset(_pool(own.stored) for own in late.values())

    def next_expiry(self) -> float | None:
        """Clock.monotonic() at which ``expire`` has something to do."""
        return min((own.until for own in self._own.values()), default=None)

    def _all(self) -> list[Json]:
        merged = self._seen | {name: own.stored for name, own in self._own.items()}
        return [merged[name] for name in sorted(merged) if merged[name]["metadata"]["uid"] not in self._removed]


def _pool(body: Json) -> str:
    return str(body["spec"]["pool"]["name"])


def _version(body: Json) -> str:
    return str(body["metadata"]["resourceVersion"])


def _is_older(one: Json, other: Json) -> bool:
    """Resource versions of one kind are comparable numbers (stated since 1.35, true before)."""
    return int(_version(one)) < int(_version(other))
