"""Events that people read in ``kubectl describe``: few, counted, and never in the way.

``emit`` only notes what happened and returns; one task writes. So an API server that is slow, away or full of rules
costs a prepare nothing, and an event that can't be written costs only itself: one that is refused is dropped, one
that the server fails on waits for its own next try, and all wait only for a server that takes nothing from us.

Occurrences of the same thing (same object, reason and key) within six minutes of each other are one Event with a
count. The API makes an Event's note immutable, so a series shows the note of its first occurrence: what changes from
one occurrence to the next doesn't belong in it, and a caller whose note holds such a thing gives a ``key`` without.
"""

import asyncio
import datetime
import logging
import random
from dataclasses import dataclass
from typing import Protocol

from kubeapi.backoff import Backoff, Clock
from kubeapi.client import EVENTS, Json, Resource
from kubeapi.errors import AlreadyExists, ApiError, NotFound, TooManyRequests, Unauthorized, Unreachable

_log = logging.getLogger(__name__)

NOTE_BYTES = 1024
_NAME_BYTES = 253
_FIELD_BYTES = 128
"""Limit of action, reason and reportingInstance (events.k8s.io/v1)."""
SERIES_IDLE = 360.0
"""Seconds without an occurrence after which the next one starts a new Event, as upstream's recorder does."""
SERIES_INTERVAL = 60.0
"""Seconds between two writes of one series' count."""
_BURST = 20
_REFILL = 2.0
"""Seconds per write once the burst is used up."""
_NOT_ABOUT_THE_EVENT = frozenset({401, 408, 429})
"""Client errors that say nothing against what was sent."""


class EventWriter(Protocol):
    """The part of client.KubeApi that is needed here."""

    async def create(self, resource: Resource, body: Json, *, namespace: str = "") -> Json: ...

    async def merge_patch(self, resource: Resource, name: str, body: Json, *, namespace: str = "") -> Json: ...


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an Event is about. Cluster-scoped objects have no namespace; their Events go to "default"."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def to_json(self) -> Json:
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
        }
        return {key: value for key, value in fields.items() if value}


_SeriesKey = tuple[ObjectReference, str, str]


@dataclass(slots=True)
class _Series:
    regarding: ObjectReference
    body: Json
    first_seen: datetime.datetime
    last_seen: datetime.datetime
    last_seen_at: float
    name: str
    backoff: Backoff
    count: int = 1
    reported: int = 0
    created: bool = False
    next_write_at: float = 0.0

    @property
    def namespace(self) -> str:
        return self.regarding.namespace or "default"


class EventRecorder:
    """Needs RBAC ``create`` and ``patch`` on ``events`` of ``events.k8s.io``. Use from the event loop only."""

    def __init__(
        self,
        api: EventWriter,
        *,
        controller: str,
        instance: str,
        clock: Clock,
        rng: random.Random | None = None,
        queue_size: int = 256,
    ) -> None:
        """``controller`` is a qualified name such as the driver's; ``instance`` tells its replicas apart."""
        self._api = api
        self._controller = controller
        self._instance = cut(instance, _FIELD_BYTES)
        self._clock = clock
        self._rng = rng if rng is not None else random.Random()
        self._backoff = self._new_backoff()
        self._queue_size = queue_size
        self._series: dict[_SeriesKey, _Series] = {}
        self._wake = asyncio.Event()
        self._tokens = float(_BURST)
        self._tokens_at = clock.monotonic()
        self._complained: set[str] = set()
        self.written = 0
        """Events created and series updated."""
        self.dropped = 0
        """Occurrences that were not and will not be written."""

    def emit(
        self,
        regarding: ObjectReference,
        *,
        reason: str,
        action: str,
        note: str,
        warning: bool = False,
        key: str | None = None,
        related: ObjectReference | None = None,
    ) -> None:
        """``reason``: CamelCase word of what is so; ``action``: of what was done or not done about it; ``key``: what
        tells this occurrence from others of the same reason (the note, unless given). Never raises, never waits."""
        if not reason or not action:
            self.dropped += 1
            _log.error("drop an event about %s %s: it has no reason or no action", regarding.kind, regarding.name)
            return
        series_key = (regarding, reason, key if key is not None else note)
        now = self._clock.monotonic()
        known = self._series.get(series_key)
        if known is not None and (known.count > known.reported or now - known.last_seen_at <= SERIES_IDLE):
            known.count += 1
            known.last_seen, known.last_seen_at = self._clock.now(), now
            self._wake.set()
            return
        if len(self._series) >= self._queue_size:
            self._forget_idle(now)
        if len(self._series) >= self._queue_size:
            self.dropped += 1
            return
        body: Json = {
            "type": "Warning" if warning else "Normal",
            "reason": cut(reason, _FIELD_BYTES),
            "action": cut(action, _FIELD_BYTES),
            "note": cut(note, NOTE_BYTES),
            "regarding": regarding.to_json(),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        if related is not None:
            body["related"] = related.to_json()
        seen = self._clock.now()
        self._series[series_key] = _Series(
            regarding, body, seen, seen, now, self._new_name(regarding.name), self._new_backoff()
        )
        self._wake.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            self._wake.clear()
            self._forget_idle(self._clock.monotonic())
            due, wait = self._next_due()
            if due is None:
                await self._wait(wait)
                continue
            await self._take_token()
            try:
                await self._write(*due)
                self._backoff.reset()
            except (Unreachable, Unauthorized, TooManyRequests) as e:
                delay = self._backoff.next(e.retry_after)
                _log.info("write an event: %s; again in %.0f s", e, delay)
                await self._clock.sleep(delay)
            except ApiError as e:
                self._put_off(due[1], e)

    async def flush(self) -> None:
        """One try for everything that isn't written yet; for the moment before the end."""
        for key, series in tuple(self._series.items()):
            if series.count > series.reported:
                try:
                    await self._write(key, series)
                except ApiError as e:
                    self.dropped += series.count - series.reported
                    _log.info("write an event before the end: %s", e)

    def _put_off(self, series: _Series, error: ApiError) -> None:
        """The server answers but fails on this one, say in a webhook: the others needn't wait for it."""
        delay = series.backoff.next(error.retry_after)
        series.next_write_at = self._clock.monotonic() + delay
        about = series.regarding
        _log.info("write an event about %s %s: %s; again in %.0f s", about.kind, about.name, error, delay)

    def _next_due(self) -> tuple[tuple[_SeriesKey, _Series] | None, float | None]:
        """The series to write now, or the seconds until one is due; None when only ``emit`` can make one due."""
        now = self._clock.monotonic()
        waits: list[float] = []
        for key, series in self._series.items():
            if series.count > series.reported:
                if series.next_write_at <= now:
                    return (key, series), None
                waits.append(series.next_write_at - now)
        return None, min(waits, default=None)

    async def _wait(self, seconds: float | None) -> None:
        woken = asyncio.create_task(self._wake.wait())
        tasks: set[asyncio.Task[object]] = {woken}
        if seconds is not None:
            tasks.add(asyncio.create_task(self._clock.sleep(seconds)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take_token(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(float(_BURST), self._tokens + (now - self._tokens_at) / _REFILL)
        self._tokens_at = now
        self._tokens -= 1.0
        if self._tokens < 0.0:
            await self._clock.sleep(-self._tokens * _REFILL)

    async def _write(self, key: _SeriesKey, series: _Series) -> None:
        """Raises ApiError for what another try may heal; drops the series for what none will."""
        count = series.count
        try:
            if series.created:
                await self._update(series, count)
            else:
                await self._create(series, count)
        except ApiError as e:
            if not 400 <= e.status < 500 or e.status in _NOT_ABOUT_THE_EVENT:
                raise
            self._give_up(key, series, e)
            return
        series.reported = count
        series.backoff.reset()
        series.next_write_at = self._clock.monotonic() + SERIES_INTERVAL
        self.written += 1

    async def _create(self, series: _Series, count: int) -> None:
        body = {
            "metadata": {"name": series.name, "namespace": series.namespace},
            "eventTime": _micro_time(series.first_seen),
            **series.body,
        }
        if count > 1:
            body["series"] = _series_json(series, count)
        try:
            await self._api.create(EVENTS, body, namespace=series.namespace)
        except AlreadyExists:
            # The name is ours alone: an earlier try was done although its answer was lost.
            if count > 1:
                await self._update(series, count)
        series.created = True

    async def _update(self, series: _Series, count: int) -> None:
        patch = {"series": _series_json(series, count)}
        try:
            await self._api.merge_patch(EVENTS, series.name, patch, namespace=series.namespace)
        except NotFound:
            # Events live for an hour; a series may outlive its Event.
            series.name, series.created = self._new_name(series.regarding.name), False
            await self._create(series, count)

    def _give_up(self, key: _SeriesKey, series: _Series, error: ApiError) -> None:
        self.dropped += series.count - series.reported
        if self._series.get(key) is series:
            del self._series[key]
        kind = type(error).__name__
        level = logging.DEBUG if kind in self._complained else logging.WARNING
        self._complained.add(kind)
        _log.log(level, "drop an event about %s %s: %s", series.regarding.kind, series.regarding.name, error)

    def _forget_idle(self, now: float) -> None:
        for key, series in tuple(self._series.items()):
            if series.count == series.reported and now - series.last_seen_at > SERIES_IDLE:
                del self._series[key]

    def _new_backoff(self) -> Backoff:
        return Backoff(initial=1.0, maximum=60.0, rng=self._rng)

    def _new_name(self, about: str) -> str:
        suffix = f".{self._rng.getrandbits(64):016x}"
        return cut(about, _NAME_BYTES - len(suffix), ellipsis="").rstrip("-.") + suffix


def _series_json(series: _Series, count: int) -> Json:
    return {"count": count, "lastObservedTime": _micro_time(series.last_seen)}


def cut(text: str, limit: int, *, ellipsis: str = "...") -> str:
    """``text`` in at most ``limit`` bytes of UTF-8, never cut through a character."""
    encoded = text.encode("utf-8")
    if len(encoded) <= limit:
        return text
    return encoded[: limit - len(ellipsis)].decode("utf-8", errors="ignore") + ellipsis


def _micro_time(when: datetime.datetime) -> str:
    """The API's MicroTime."""
    return when.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
