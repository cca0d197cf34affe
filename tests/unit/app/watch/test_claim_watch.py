"""Exactly the claims that are prepared are watched, each by its name."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from kubeapi.client import RESOURCE_CLAIMS, Json, KubeApi, Page, Resource, WatchEvent
from kubeapi.errors import Gone
from kubeletplugin.app.watch.claim_watch import REMEMBERED, WATCH, ClaimWatches, ReadClaims
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.supervision import RESTART_SECONDS
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

A, B = ClaimRef("uid-a", "team", "a"), ClaimRef("uid-b", "other", "b")


def claim(ref: ClaimRef, uid: str = "", **metadata: Any) -> Json:
    return {"metadata": {"name": ref.name, "namespace": ref.namespace, "uid": uid or ref.uid, **metadata}}


class Api:
    """Lists what ``stored`` has, and passes on what is put into ``watches`` by selector. ``from_versions`` are those
    that watches were asked for from; ``too_old`` is answered 410."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}
        self.watches: dict[tuple[str, str], asyncio.Queue[WatchEvent]] = {}
        self.opened = 0
        self.lists = 0
        self.from_versions: list[str] = []
        self.too_old = ""
        self.odd = False

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        return self.stored[name]

    async def list(self, resource: Resource, *, namespace: str, field_selector: str, **rest: Any) -> Page:
        self.lists += 1
        found = self.stored.get(field_selector.removeprefix("metadata.name="))
        return Page((found,) if found else (), "1", "")

    async def watch(
        self, resource: Resource, *, namespace: str, field_selector: str, resource_version: str, **rest: Any
    ) -> AsyncIterator[WatchEvent]:
        if self.odd:
            raise TypeError("odd answer")
        self.from_versions.append(resource_version)
        if resource_version == self.too_old:
            raise Gone(410, "Expired", f"too old resource version: {resource_version}")
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
        api = cast("KubeApi", self.api)
        self.read = ReadClaims(api)
        self.watches = ClaimWatches(api, self.clock, self.observed.append, self.gone.append, self.read)

    async def prepare(self, ref: ClaimRef, version: str) -> Json:
        self.api.stored[ref.name] = stored = claim(ref, resourceVersion=version)
        await self.read.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        return stored

    async def follow(self, *refs: ClaimRef) -> set[tuple[str, str]]:
        self.watches.follow(frozenset(refs))
        await self.clock.settle()
        return set(self.api.watches)

    async def send(self, ref: ClaimRef, kind: Any, body: Json) -> None:
        body["metadata"].setdefault("resourceVersion", "2")
        self.api.watches[ref.namespace, f"metadata.name={ref.name}"].put_nowait(WatchEvent(kind, body))
        await self.clock.settle()


@pytest.fixture
async def node(anyio_backend: str) -> AsyncIterator[Node]:
    """Its watches end with the test: one that were left would be collected in the middle of another test, as that one's
    failure."""
    made = Node()
    yield made
    await made.watches.stop()


async def test_watches_these_and_no_others(node: Node) -> None:
    assert await node.follow(A) == {("team", "metadata.name=a")}
    assert await node.follow(A, B) == {("team", "metadata.name=a"), ("other", "metadata.name=b")}
    assert node.api.opened == 2
    assert await node.follow(B) == {("other", "metadata.name=b")}
    await node.watches.stop()
    await node.clock.settle()
    assert node.api.watches == {}


async def test_every_state_of_the_claim_is_told_from_the_first_on(node: Node) -> None:
    node.api.stored["a"] = first = claim(A, resourceVersion="1")
    await node.follow(A)
    assert node.observed == [first]
    second = claim(A, labels={"pod": "joined"})
    await node.send(A, "MODIFIED", second)
    assert node.observed == [first, second]


async def test_another_claim_of_the_name_is_not_told_and_the_end_of_this_one_by_its_uid(node: Node) -> None:
    """Unprepare will come for this one, and the other is prepared, if ever, as itself."""
    node.api.stored["a"] = claim(A, resourceVersion="1")
    await node.follow(A)
    node.observed.clear()
    await node.send(A, "DELETED", claim(A))
    await node.send(A, "ADDED", claim(A, uid="uid-other"))
    await node.send(A, "DELETED", claim(A, uid="uid-other"))
    assert node.observed == []
    assert node.gone == [A.uid]


async def test_a_claim_that_was_just_read_is_watched_from_there_without_a_list(node: Node) -> None:
    """So what changes between the two is told by the watch."""
    await node.prepare(A, "6")
    state = await node.prepare(A, "7")
    await node.follow(A)
    assert (node.api.lists, node.api.from_versions) == (0, ["7"])
    assert node.observed == [state]
    joined = claim(A, resourceVersion="8")
    await node.send(A, "MODIFIED", joined)
    assert node.observed == [state, joined]
    await node.send(A, "DELETED", claim(A, resourceVersion="9"))
    assert node.gone == [A.uid]


async def test_a_state_that_is_too_old_for_the_server_means_a_list(node: Node) -> None:
    await node.prepare(A, "7")
    node.api.stored["a"] = newer = claim(A, resourceVersion="9")
    node.api.too_old = "7"
    await node.follow(A)
    await node.clock.advance(60)
    assert (node.api.lists, node.api.from_versions) == (1, ["7", "1"])
    assert node.observed[-1] == newer


async def test_a_state_lasts_until_the_claim_can_be_watched_and_no_longer(node: Node) -> None:
    """One may be read for a Prepare while the claims to be watched are already looked up."""
    await node.prepare(B, "5")
    await node.follow(A)
    assert node.read.state(B.uid) is not None
    await node.follow(A)
    assert node.read.state(B.uid) is None


async def test_nothing_is_remembered_of_claims_that_are_watched_nor_of_too_many(node: Node) -> None:
    await node.follow(A)
    await node.prepare(A, "9")
    assert node.read.state(A.uid) is None
    refs = [ClaimRef(f"uid-{n}", "team", f"claim-{n}") for n in range(REMEMBERED + 1)]
    for ref in refs:
        await node.prepare(ref, "1")
    assert node.read.state("uid-0") is None
    assert all(node.read.state(ref.uid) for ref in refs[1:])


async def test_a_watch_that_fails_in_an_unforeseen_way_is_begun_anew_with_a_list(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """Who else would learn of a pod that joins the claim?"""
    await node.prepare(A, "7")
    node.api.odd = True
    await node.follow(A)
    assert node.api.watches == {}
    node.api.odd = False
    await node.clock.advance(RESTART_SECONDS)
    assert (node.api.lists, set(node.api.watches)) == (1, {("team", "metadata.name=a")})
    assert [record.getMessage() for record in caplog.records] == [f"{WATCH}: an error that nobody foresaw"]
    await node.watches.stop()
    assert node.api.watches == {}
