"""The reflector over real HTTP: the same promises, with a real client and a server that goes away."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.backoff import Backoff
from kubeapi.client import RESOURCE_SLICES
from kubeapi.reflector import Change, Reflector
from kubeapi.rest import RestKubeApi
from kubeletplugin.clock import SystemClock
from tests.contract.kubeapi.objects import a_slice

pytestmark = pytest.mark.anyio


class Rig:
    def __init__(self, server: FakeApiServer, api: RestKubeApi) -> None:
        self.server = server
        self.reflector = Reflector(
            api,
            RESOURCE_SLICES,
            clock=SystemClock(),
            field_selector="spec.nodeName=n1",
            page_size=2,
            backoff=Backoff(initial=0.002, maximum=0.01, rng=random.Random(1)),
        )
        self._changed = asyncio.Event()
        self.reflector.subscribe(self._note)

    def _note(self, change: Change) -> None:
        self._changed.set()

    async def until_names(self, *names: str) -> None:
        while [o["metadata"]["name"] for o in self.reflector.objects()] != list(names):
            self._changed.clear()
            await self._changed.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reflector.run())
        try:
            await self.reflector.synced.wait()
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def rig(server: FakeApiServer, api: RestKubeApi) -> Rig:
    return Rig(server, api)


async def _watching(server: FakeApiServer) -> None:
    await server.until(lambda: server.open_watches["resourceslices"] == 1)


async def test_it_follows_the_server(rig: Rig, server: FakeApiServer) -> None:
    for name in "abc":
        server.put(RESOURCE_SLICES, a_slice(name))
    server.put(RESOURCE_SLICES, a_slice("other", node="n2"))
    async with rig.running():
        await rig.until_names("a", "b", "c")
        server.remove(RESOURCE_SLICES, "b")
        server.put(RESOURCE_SLICES, a_slice("d"))
        await rig.until_names("a", "c", "d")
        assert rig.reflector.get("d") == server.object(RESOURCE_SLICES, "d")
    assert server.requests["list", "resourceslices"] == 2
    assert server.requests["watch", "resourceslices"] == 1


async def test_an_object_looks_the_same_whichever_way_it_came(rig: Rig, server: FakeApiServer) -> None:
    server.put(RESOURCE_SLICES, a_slice("listed"))
    async with rig.running():
        server.put(RESOURCE_SLICES, a_slice("watched"))
        await rig.until_names("listed", "watched")
        listed, watched = rig.reflector.objects()
    assert listed == server.object(RESOURCE_SLICES, "listed")
    assert listed.keys() == watched.keys()


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_server_that_goes_away_and_comes_back(rig: Rig, server: FakeApiServer, compacted: bool) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    async with rig.running():
        await _watching(server)
        await server.stop()
        server.remove(RESOURCE_SLICES, "a")
        server.put(RESOURCE_SLICES, a_slice("b"))
        if compacted:
            server.compact()
        await server.start()
        await rig.until_names("b")
        await _watching(server)
    assert server.requests["list", "resourceslices"] == (2 if compacted else 1)


async def test_cut_watches_lose_nothing(rig: Rig, server: FakeApiServer) -> None:
    async with rig.running():
        for number in range(5):
            await _watching(server)
            server.cut_watches()
            await server.until(lambda: server.open_watches["resourceslices"] == 0)
            server.put(RESOURCE_SLICES, a_slice(f"s{number}"))
            await rig.until_names(*(f"s{n}" for n in range(number + 1)))
    assert server.requests["list", "resourceslices"] == 1


async def test_missing_rights_are_told_and_tried_again(rig: Rig, server: FakeApiServer) -> None:
    server.put(RESOURCE_SLICES, a_slice("a"))
    server.faults.fail(403, verb="list", times=3, message="may not list resourceslices")
    async with rig.running():
        await rig.until_names("a")
    assert rig.reflector.stats.errors == 3
    assert server.requests["list", "resourceslices"] == 4
