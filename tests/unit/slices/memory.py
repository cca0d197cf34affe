"""An API server's ResourceSlices in memory: enough of KubeApi for the slice controller, with faults on demand."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeapi.client import NODES, Json, Page, Resource, WatchEvent
from kubeapi.errors import AlreadyExists, ApiError, Conflict, NotFound

Fault = Callable[[str, Json], ApiError | None]
"""Called with the verb and the object (or its name and uid) before anything is done."""


@dataclass
class MemoryApi:
    """``calls`` are the writes that reached the server, refused ones included; ``mutate`` may change what is stored."""

    node_uid: str = "node-uid"
    calls: list[str] = field(default_factory=list)
    gets: int = 0
    fault: Fault = lambda verb, body: None
    mutate: Callable[[Json], None] = lambda body: None
    lag: bool = False
    """While set, watchers are told nothing."""

    def __post_init__(self) -> None:
        self._objects: dict[str, Json] = {}
        self._version = itertools.count(100)
        self._latest = 99
        self._log: list[tuple[int, WatchEvent]] = []
        self._watchers: set[asyncio.Event] = set()
        self._cut = 0

    # --- what a test does as somebody else ---

    @property
    def slices(self) -> list[Json]:
        return [copy.deepcopy(self._objects[name]) for name in sorted(self._objects)]

    def put(self, *bodies: Json) -> None:
        for body in bodies:
            self._store(copy.deepcopy(body), "MODIFIED" if body["metadata"]["name"] in self._objects else "ADDED")

    def drop(self, name: str) -> None:
        body = self._objects.pop(name)
        self._tell("DELETED", body)

    def wipe(self) -> None:
        for name in list(self._objects):
            self.drop(name)

    def cut_watches(self) -> None:
        self._cut += 1
        self._wake()

    def release(self) -> None:
        self.lag = False
        self._wake()

    # --- KubeApi ---

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        assert resource == NODES
        self.gets += 1
        self._check("get", {"name": name})
        return {"metadata": {"name": name, "uid": self.node_uid}}

    async def list(self, resource: Resource, **options: Any) -> Page:
        self._check("list", {})
        driver, node = (part.split("=")[1] for part in options["field_selector"].split(","))
        items = tuple(it for it in self.slices if it["spec"]["driver"] == driver and it["spec"]["nodeName"] == node)
        return Page(items, str(self._latest))

    async def watch(self, resource: Resource, *, resource_version: str, **options: Any) -> AsyncIterator[WatchEvent]:
        self._check("watch", {})
        cut, sent = self._cut, int(resource_version)
        news = asyncio.Event()
        self._watchers.add(news)
        try:
            while self._cut == cut:
                news.clear()
                for version, event in tuple(self._log):
                    if version > sent and not self.lag:
                        sent = version
                        yield event
                await news.wait()
        finally:
            self._watchers.discard(news)

    async def create(self, resource: Resource, body: Json, *, namespace: str = "", dry_run: bool = False) -> Json:
        verb = "dry-run" if dry_run else "create"
        body = copy.deepcopy(body)
        metadata = body["metadata"]
        self.calls.append(f"{verb} {metadata.get('generateName', metadata.get('name'))}")
        self._check(verb, body)
        metadata.setdefault("name", f"{metadata.get('generateName')}{next(self._version)}")
        if metadata["name"] in self._objects:
            raise AlreadyExists(409, "AlreadyExists", "exists")
        metadata["uid"] = f"uid-{next(self._version)}"
        self.mutate(body)
        return body if dry_run else self._store(body, "ADDED")

    async def replace(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", dry_run: bool = False
    ) -> Json:
        self.calls.append(f"update {name}")
        self._check("update", body)
        self._precondition(name, body["metadata"].get("uid", ""), body["metadata"]["resourceVersion"])
        body = copy.deepcopy(body)
        self.mutate(body)
        return self._store(body, "MODIFIED")

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        assert uid, "deletes carry preconditions"
        assert resource_version, "deletes carry preconditions"
        self.calls.append(f"delete {name}")
        self._check("delete", {"name": name})
        self._precondition(name, uid, resource_version)
        self.drop(name)

    async def apply(self, *arguments: Any, **options: Any) -> Json:
        raise AssertionError("slices aren't applied")

    async def merge_patch(self, *arguments: Any, **options: Any) -> Json:
        raise AssertionError("slices aren't patched")

    async def close(self) -> None:
        """Nothing is open."""

    # --- inside ---

    def _check(self, verb: str, body: Json) -> None:
        error = self.fault(verb, body)
        if error is not None:
            raise error

    def _precondition(self, name: str, uid: str, version: str) -> None:
        existing = self._objects.get(name)
        if existing is None:
            raise NotFound(404, "NotFound", f"{name} not found")
        if uid != existing["metadata"]["uid"] or version != existing["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", f"{name} changed")

    def _store(self, body: Json, event: Any) -> Json:
        metadata = body["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._version)}")
        self._latest = next(self._version)
        metadata["resourceVersion"] = str(self._latest)
        self._objects[metadata["name"]] = body
        self._tell(event, body, self._latest)
        return copy.deepcopy(body)

    def _tell(self, event: Any, body: Json, version: int | None = None) -> None:
        self._latest = version if version is not None else next(self._version)
        told = copy.deepcopy(body)
        told["metadata"]["resourceVersion"] = str(self._latest)
        self._log.append((self._latest, WatchEvent(event, told)))
        self._wake()

    def _wake(self) -> None:
        for news in self._watchers:
            news.set()


@dataclass
class Recorder:
    """A SliceObserver that keeps what it was told."""

    told: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    retries: list[float] = field(default_factory=list)

    def slice_written(self, verb: str) -> None:
        self.writes.append(verb)

    def not_published(self, pool: str, problem: object) -> None:
        self.told.append(f"{pool}: {problem}")

    def fields_dropped(self, error: Exception) -> None:
        self.told.append(str(error))

    def sync_failed(self, pool: str, error: Exception, retry_in: float) -> None:
        self.told.append(f"{pool}: {error}")
        self.retries.append(retry_in)

    def accepted_changed(self, accepted: bool) -> None:
        self.accepted.append(accepted)


def complete_generations(slices: list[Json]) -> set[int]:
    """Generations of which every slice is there."""
    by_generation: dict[int, list[Mapping[str, Any]]] = {}
    for item in slices:
        by_generation.setdefault(item["spec"]["pool"]["generation"], []).append(item["spec"]["pool"])
    return {
        generation
        for generation, pools in by_generation.items()
        if all(pool["resourceSliceCount"] == len(pools) for pool in pools)
    }
