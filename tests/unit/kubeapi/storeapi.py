"""Lists and watches over the fake server's store without any I/O, so that a virtual clock can rule them."""

import asyncio
from collections.abc import AsyncIterator

from gpuclaim.demo.apiserver_store import Change, Collection, Store
from kubeapi.client import RESOURCE_SLICES, Json, Page, Resource, WatchEvent
from kubeapi.errors import ApiError, Gone
from kubeapi.reflector import ListWatcher


class StoreApi:
    """A server with switches. ``list_errors`` and ``watch_errors`` are raised one a call, first one first."""

    def __init__(self) -> None:
        self.store = Store()
        self.list_errors: list[ApiError] = []
        self.watch_errors: list[ApiError] = []
        self.page_hook_errors: list[ApiError] = []
        """Raised for pages after the first."""
        self.open: list[asyncio.Queue[WatchEvent | ApiError | None]] = []
        self.most_open = 0
        self.deaf = False
        """Watches open, and nothing comes through them."""
        self.calls: list[str] = []
        self.seconds: list[int] = []
        """How long each watch was asked for."""

    @property
    def collection(self) -> Collection:
        return self.store.collection(RESOURCE_SLICES.group, RESOURCE_SLICES.plural)

    def put(self, name: str, *, uid: str = "", note: str = "") -> None:
        old = self.collection.objects.get(("", name))
        kept = old["metadata"]["uid"] if old is not None else f"uid-{self.store.version}"
        body: Json = {"metadata": {"name": name, "uid": uid or kept}, "note": note}
        change = "MODIFIED" if old is not None else "ADDED"
        self._tell(change, self.store.write(self.collection, ("", name), body))

    def remove(self, name: str) -> None:
        self._tell("DELETED", self.store.remove(self.collection, ("", name)))

    def bookmark(self) -> None:
        self._tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.store.version)}})

    def end_watches(self, error: ApiError | None = None) -> None:
        for queue in self.open:
            queue.put_nowait(error)

    def names(self) -> dict[str, Json]:
        return {key[1]: body for key, body in self.collection.objects.items()}

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Page:
        self.calls.append(f"list limit={limit}" + (" more" if continue_token else ""))
        if self.list_errors:
            raise self.list_errors.pop(0)
        if continue_token:
            if self.page_hook_errors:
                raise self.page_hook_errors.pop(0)
            kept = self.store.snapshot(continue_token)
            if kept is None:
                raise Gone(410, "Expired", "continue parameter is too old")
            version, items = kept
        else:
            version, items = self.store.version, self.collection.bodies("")
        token = ""
        if limit and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            token = self.store.keep_snapshot(version, rest)
        return Page(tuple(items), str(version), token)

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 0,
    ) -> AsyncIterator[WatchEvent]:
        self.calls.append(f"watch {resource_version}")
        self.seconds.append(timeout_seconds)
        if self.watch_errors:
            raise self.watch_errors.pop(0)
        if int(resource_version) < self.store.compacted:
            raise Gone(410, "Expired", f"too old resource version: {resource_version}")
        queue: asyncio.Queue[WatchEvent | ApiError | None] = asyncio.Queue()
        for change in self.collection.history:
            if change.version > int(resource_version) and not self.deaf:
                queue.put_nowait(_event(change))
        if int(resource_version) > self.store.version:
            await asyncio.get_running_loop().create_future()
        self.open.append(queue)
        self.most_open = max(self.most_open, len(self.open))
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, ApiError):
                    raise event
                yield event
        finally:
            self.open.remove(queue)

    def _tell(self, kind: str, body: Json) -> None:
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            raise ValueError(kind)
        for queue in self.open:
            if not self.deaf:
                queue.put_nowait(WatchEvent(kind, body))  # type: ignore[arg-type]


def _event(change: Change) -> WatchEvent:
    return WatchEvent(change.type, change.new)


def _is_a_list_watcher(api: StoreApi) -> ListWatcher:
    return api
