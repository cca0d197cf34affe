"""Exactly the claims that are prepared are watched, each by its name."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kubeapi.client import Json, KubeApi, Page, Resource, WatchEvent
from kubeletplugin.app.claim_watch import ClaimWatches
from kubeletplugin.prepare.model import ClaimRef
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

A, B = ClaimRef("uid-a", "team", "a"), ClaimRef("uid-b", "other", "b")


def claim(ref: ClaimRef, uid: str = "", **metadata: Any) -> Json:
    return {"metadata": {"name": ref.name, "namespace": ref.namespace, "uid": uid or ref.uid, **metadata}}


class Api:
    """Lists what ``stored`` has, and passes on what is put into ``watches`` by selector."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.watches: dict[tuple[str, str], asyncio.Queue[WatchEvent]] = {}
        self.opened = 0

    async def list(self, resource: Resource, *, namespace: str, field_selector: str, **rest: Any) -> Page:
        found = self.stored.get(field_selector.removeprefix("metadata.name="))
        return Page((found,) if found else (), "1", "")

    async def watch(
        self, resource: Resource, *, namespace: str, field_selector: str, **rest: Any
    ) -> AsyncIterator[WatchEvent]:
        key = (namespace, field_selector)
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        self.watches[key] = queue
        self.opened += 1
        try:
            while True:
                yield await queue.get()
        finally:
            del self.watches[key]


class Node:
    def __init__(self) -> None:
        self.api, self.clock = Api(), VirtualClock()
        self.observed: list[Json] = []
        self.gone: list[str] = []
        self.watches = ClaimWatches(cast("KubeApi", self.api), self.clock, self.observed.append, self.gone.append)

    async def follow(self, *refs: ClaimRef) -> set[tuple[str, str]]:
        self.watches.follow(frozenset(refs))
        await self.clock.settle()
        return set(self.api.watches)

    async def send(self, ref: ClaimRef, kind: Any, body: Json) -> None:
        body["metadata"].setdefault("resourceVersion", "2")
        self.api.watches[ref.namespace, f"metadata.name={ref.name}"].put_nowait(WatchEvent(kind, body))
        await self.clock.settle()


async def test_watches_these_and_no_others() -> None:
    node = Node()
    assert await node.follow(A) == {("team", "metadata.name=a")}
    assert await node.follow(A, B) == {("team", "metadata.name=a"), ("other", "metadata.name=b")}
    assert node.api.opened == 2
    assert await node.follow(B) == {("other", "metadata.name=b")}
    await node.watches.stop()
    await node.clock.settle()
    assert node.api.watches == {}


async def test_every_state_of_the_claim_is_told_from_the_first_on() -> None:
    node = Node()
    node.api.stored["a"] = first = claim(A, resourceVersion="1")
    await node.follow(A)
    assert node.observed == [first]
    second = claim(A, labels={"pod": "joined"})
    await node.send(A, "MODIFIED", second)
    assert node.observed == [first, second]
    await node.watches.stop()


async def test_another_claim_of_the_name_is_not_told_and_the_end_of_this_one_by_its_uid() -> None:
    """Unprepare will come for this one, and the other is prepared, if ever, as itself."""
    node = Node()
    node.api.stored["a"] = claim(A, resourceVersion="1")
    await node.follow(A)
    node.observed.clear()
    await node.send(A, "DELETED", claim(A))
    await node.send(A, "ADDED", claim(A, uid="uid-other"))
    await node.send(A, "DELETED", claim(A, uid="uid-other"))
    assert node.observed == []
    assert node.gone == [A.uid]
    await node.watches.stop()
