"""The stored objects, their versions and their history, in memory.

One counter numbers all writes, as etcd's revision does. A watch replays the history after its version; ``compact``
forgets it, so that older versions, and the pages of lists begun before, are answered with 410 as after etcd's
compaction every five minutes.
"""

import asyncio
import contextlib
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from gpuclaim.demo.apiserver_errors import Json

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write; ``old`` is None for a create. For DELETED ``new`` is the last body with the version of the delete."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    new: Json
    old: Json | None


@dataclass(slots=True)
class Collection:
    """All objects of one group and plural, whatever the version they are asked in."""

    objects: dict[Key, Json] = field(default_factory=dict)
    history: list[Change] = field(default_factory=list)
    subscriptions: set["Subscription"] = field(default_factory=set)
    lose_next: int = 0
    """Changes still to come that no watch is told of (a fault)."""

    def bodies(self, namespace: str) -> list[Json]:
        return [self.objects[key] for key in sorted(self.objects) if not namespace or key[0] == namespace]


@dataclass(eq=False, slots=True)
class Subscription:
    """One watch's view of a collection: what it hasn't been told yet."""

    pending: deque[Change]
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Store:
    """Only called from one event loop; bodies handed out must be copied before they are changed."""

    def __init__(self) -> None:
        self.version = 1000
        self.compacted = 0
        self._collections: dict[tuple[str, str], Collection] = defaultdict(Collection)
        self._snapshots: dict[str, tuple[int, list[Json]]] = {}
        self._tokens = itertools.count(1)

    def collection(self, group: str, plural: str) -> Collection:
        return self._collections[group, plural]

    def write(self, collection: Collection, key: Key, body: Json) -> Json:
        """Stores ``body`` under the next version, which is written into it."""
        old = collection.objects.get(key)
        self._stamp(body)
        collection.objects[key] = body
        self._record(collection, Change(self.version, "ADDED" if old is None else "MODIFIED", body, old))
        return body

    def remove(self, collection: Collection, key: Key) -> Json:
        old = collection.objects.pop(key)
        last = {**old, "metadata": dict(old["metadata"])}
        self._stamp(last)
        self._record(collection, Change(self.version, "DELETED", last, old))
        return last

    def compact(self) -> None:
        self.compacted = self.version
        self._snapshots.clear()
        for collection in self._collections.values():
            collection.history.clear()

    def keep_snapshot(self, version: int, rest: list[Json]) -> str:
        """A continue token for the rest of a list."""
        token = f"page-{next(self._tokens)}"
        self._snapshots[token] = (version, rest)
        return token

    def snapshot(self, token: str) -> tuple[int, list[Json]] | None:
        """None when it has expired (or never was)."""
        return self._snapshots.get(token)

    @contextlib.contextmanager
    def watching(self, collection: Collection, version: int) -> Iterator[Subscription]:
        """Every change after ``version``, which must not be older than the last compaction."""
        subscription = Subscription(deque(c for c in collection.history if c.version > version))
        collection.subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            collection.subscriptions.discard(subscription)

    def wake_watchers(self) -> None:
        for collection in self._collections.values():
            for subscription in collection.subscriptions:
                subscription.woken.set()

    def _stamp(self, body: Json) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)

    def _record(self, collection: Collection, change: Change) -> None:
        if collection.lose_next:
            collection.lose_next -= 1
            return
        collection.history.append(change)
        for subscription in collection.subscriptions:
            subscription.pending.append(change)
            subscription.woken.set()
