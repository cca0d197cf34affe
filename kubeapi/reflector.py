"""A live copy of a collection: list once, watch from there, list again when the watch can't go on. For one object
whose state was read just now, that may stand in for the first list.

Own code, because no Python client has one that survives: the official ``watch`` repeats a 410 once with the same
stale version and never lists again. What callers may rely on:

- The cache holds what the server held at some moment not long ago, never a mixture, and never goes back in time.
- Every difference between two states of the cache is told once, also when it was found by listing: an object that
  went away while nobody watched is a DELETED with its last known body, one that was replaced under the same name a
  DELETED and an ADDED.
- There is one request at a time: never two watches.
- Errors don't end it: it tries again for ever, with back-off and jitter, and keeps count for those who ask. Each is
  logged once while the trouble lasts, and so is its end.

A watch that broke without a word from the server is resumed where it was (the server answers 410 if that is too
long ago), so that an API server that restarts isn't met by full lists from every node. An error that the server sent
means a new list; so do two watches in a row without event or bookmark: a server that was restored from a backup
holds versions below ours, and lets a watch from a version of its future wait for ever (seen on 1.36.3).
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from kubeapi.backoff import Backoff, Clock
from kubeapi.client import Json, Page, Resource, WatchEvent
from kubeapi.complaints import Complaints
from kubeapi.errors import ApiError, Gone, TooManyRequests, Unreachable

_log = logging.getLogger(__name__)

_WATCH_SECONDS = (1200, 2400)
"""How long one watch is asked for, drawn at random so that the agents of a cluster don't reconnect together. Two to
three requests an hour: that a watch still lives is told by bookmarks, not by its end."""
_SHORT_WATCH = 1.0
"""Seconds: a watch that ends sooner without an event counts as a failure, or a server (or proxy) that closes at once
would be called in a loop."""
_LONG_WATCH = 90.0
"""Seconds: a watch of this length had at least one bookmark to hear, which come about every minute."""
_MUTE_WATCHES = 2
"""Watches of that length in a row without a word, after which the list is taken anew."""

Key = tuple[str, str]
"""Namespace and name."""


class ListWatcher(Protocol):
    """The part of client.KubeApi that is needed here."""

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Page: ...

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 0,
    ) -> AsyncIterator[WatchEvent]: ...


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two states of the cache; ``object`` is the last known body for DELETED."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json


@dataclass(slots=True)
class ReflectorStats:
    """Counters since the start, and what went wrong last; ``last_error`` is empty while all is well."""

    lists: int = 0
    watches: int = 0
    errors: int = 0
    silent_watches: int = 0
    last_error: str = ""
    last_contact: float = 0.0
    """Clock.monotonic() of the last answer or event."""


def _whole(body: Json) -> Json:
    return body


class _Silent(Exception):
    """The watch gave no event and no bookmark for too long."""


class Reflector:
    """See the module. Read and change it from one event loop only; bodies handed out must not be changed."""

    def __init__(
        self,
        api: ListWatcher,
        resource: Resource,
        *,
        clock: Clock,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        page_size: int = 500,
        silence: float = 180.0,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        complaints: Complaints | None = None,
        keep: Callable[[Json], Json] = _whole,
        start: Json | None = None,
    ) -> None:
        """``silence``: seconds without event or bookmark after which a watch is given up and resumed. Above the
        client's own limit, which usually comes first; this one also covers clients without. ``complaints`` may be
        shared by reflectors whose troubles are one to a reader. ``keep`` makes of a body what the cache holds and
        changes tell, so that memory isn't spent on what nobody reads; it must leave ``metadata`` its name, namespace,
        uid and resourceVersion. ``start`` is a state, read from the server, of the one object that can be selected: the
        first watch begins there instead of a list."""
        self._api = api
        self._resource = resource
        self._clock = clock
        self._namespace = namespace
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._page_size = page_size
        self._silence = silence
        self._rng = rng if rng is not None else random.Random()
        self._backoff = backoff if backoff is not None else Backoff(rng=self._rng)
        self._keep = keep
        self._cache: dict[Key, Json] = {}
        self._version = ""
        self._heard = 0
        self._mute = 0
        self._complaints = complaints or Complaints(_log, f"list and watch {resource.plural}")
        self._list_failed = False
        self._subscribers: list[Callable[[Change], None]] = []
        self._running = False
        self.synced = asyncio.Event()
        """Set once the first list, or what it started from, is in the cache, and for ever after."""
        self.stats = ReflectorStats()
        if start is not None:
            self._cache[_key(start)] = keep(start)
            self._version = _meta(start, "resourceVersion")
            self.synced.set()

    def get(self, name: str, namespace: str = "") -> Json | None:
        return self._cache.get((namespace, name))

    def objects(self) -> tuple[Json, ...]:
        """All objects, in order of namespace and name."""
        return tuple(self._cache[key] for key in sorted(self._cache))

    def subscribe(self, callback: Callable[[Change], None]) -> Callable[[], None]:
        """Calls back on every change, at first with an ADDED for each object that is there already. The callback
        must be quick; what it raises is logged. Returns what ends the subscription."""
        self._subscribers.append(callback)
        for body in self.objects():
            _tell(callback, Change("ADDED", body))
        return lambda: self._subscribers.remove(callback)

    async def run(self) -> None:
        """Until cancelled. RuntimeError when it runs already."""
        if self._running:
            raise RuntimeError(f"reflector of {self._resource.plural} runs already")
        self._running = True
        try:
            while True:
                listing = not self._version
                try:
                    await self._step()
                except ApiError as e:
                    self._list_failed = listing
                    await self._failed(e)
        finally:
            self._running = False

    async def _step(self) -> None:
        """A list where one is needed, else one watch from where the last one ended."""
        if not self._version:
            await self._list()
            return
        started, heard = self._clock.monotonic(), self._heard
        try:
            await self._watch()
        except _Silent:
            self.stats.silent_watches += 1
            _log.info("watch of %s silent for %.0f s, resuming it", self._resource.plural, self._silence)
            return
        except ApiError as e:
            if not isinstance(e, Unreachable | TooManyRequests):
                self._version = ""
            raise
        finally:
            length = self._clock.monotonic() - started
            if self._heard == heard and length >= _LONG_WATCH:
                self._mute += 1
                if self._mute >= _MUTE_WATCHES:
                    self._version = ""
        if self._heard == heard and length < _SHORT_WATCH:
            raise Unreachable(f"watch {self._resource.plural}: the server ended the watch at once")
        self._complaints.healed()

    async def _failed(self, error: ApiError) -> None:
        self.stats.errors += 1
        self.stats.last_error = str(error)
        delay = self._backoff.next(error.retry_after)
        if isinstance(error, Gone):
            _log.info("list %s anew in %.1f s: %s", self._resource.plural, delay, error)
        else:
            self._complaints.failed(error, delay)
        await self._clock.sleep(delay)

    def _contact(self) -> None:
        self.stats.last_contact = self._clock.monotonic()
        self.stats.last_error = ""

    async def _list(self) -> None:
        try:
            found, version = await self._pages(self._page_size)
        except Gone:
            # The snapshot that the pages were cut from is too old; in one piece it can't expire between two pages.
            found, version = await self._pages(0)
        self._contact()
        self._mute = 0
        self._replace(found)
        self._version = version
        self.synced.set()
        # A list that works is no news where it is the watch that fails: they take turns then.
        if self._list_failed:
            self._list_failed = False
            self._complaints.healed()

    async def _pages(self, size: int) -> tuple[dict[Key, Json], str]:
        found: dict[Key, Json] = {}
        token = ""
        while True:
            self.stats.lists += 1
            page = await self._api.list(
                self._resource,
                namespace=self._namespace,
                field_selector=self._field_selector,
                label_selector=self._label_selector,
                limit=size,
                continue_token=token,
            )
            for body in page.items:
                found[_key(body)] = self._keep(body)
            token = page.continue_token
            if not token:
                return found, page.resource_version

    def _replace(self, found: dict[Key, Json]) -> None:
        before, self._cache = self._cache, found
        for key in sorted(before.keys() - found.keys()):
            self._publish(Change("DELETED", before[key]))
        for key in sorted(found):
            self._publish_difference(before.get(key), found[key])

    def _publish_difference(self, old: Json | None, new: Json) -> None:
        if old is not None and _meta(old, "uid") != _meta(new, "uid"):
            self._publish(Change("DELETED", old))
            old = None
        if old is None:
            self._publish(Change("ADDED", new))
        elif _meta(old, "resourceVersion") != _meta(new, "resourceVersion"):
            self._publish(Change("MODIFIED", new))

    def _publish(self, change: Change) -> None:
        for callback in tuple(self._subscribers):
            _tell(callback, change)

    async def _watch(self) -> None:
        """One watch to its end. A reader and a watchdog: whichever is done first ends the other."""
        self.stats.watches += 1
        self.stats.last_contact = self._clock.monotonic()
        stream = self._api.watch(
            self._resource,
            resource_version=self._version,
            namespace=self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            timeout_seconds=self._rng.randint(*_WATCH_SECONDS),
        )
        tasks = {
            asyncio.create_task(self._read(stream), name=f"watch {self._resource.plural}"),
            asyncio.create_task(self._until_silent(), name=f"watch {self._resource.plural} watchdog"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _read(self, stream: AsyncIterator[WatchEvent]) -> None:
        async for event in stream:
            self._contact()
            self._heard += 1
            self._mute = 0
            self._backoff.reset()
            self._complaints.healed()
            self._take(event)

    async def _until_silent(self) -> None:
        while (left := self.stats.last_contact + self._silence - self._clock.monotonic()) > 0:
            await self._clock.sleep(left)
        raise _Silent

    def _take(self, event: WatchEvent) -> None:
        self._version = _meta(event.object, "resourceVersion")
        if event.type == "BOOKMARK":
            return
        body = self._keep(event.object)
        key = _key(body)
        old = self._cache.get(key)
        if event.type == "DELETED":
            if old is not None:
                del self._cache[key]
                self._publish(Change("DELETED", body))
            return
        self._cache[key] = body
        self._publish_difference(old, body)


def _tell(callback: Callable[[Change], None], change: Change) -> None:
    try:
        callback(change)
    except Exception:
        _log.exception("tell a subscriber of %s %s", change.type, "/".join(_key(change.object)))


def _key(body: Json) -> Key:
    return _meta(body, "namespace"), _meta(body, "name")


def _meta(body: Json, field: str) -> str:
    return str((body.get("metadata") or {}).get(field) or "")
