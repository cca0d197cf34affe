"""Watches over real HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import NODES, RESOURCE_SLICES, WatchEvent
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.errors import ApiError, Gone, TooManyRequests, Unreachable
from kubeapi.rest import RestKubeApi
from kubeapi.transport import Timeouts
from tests.contract.kubeapi.objects import a_device, a_slice

pytestmark = pytest.mark.anyio


def _watch(api: RestKubeApi, version: str, **options: str) -> AsyncGenerator[WatchEvent, None]:
    stream: AsyncIterator[WatchEvent] = api.watch(RESOURCE_SLICES, resource_version=version, **options)  # type: ignore[arg-type]
    assert isinstance(stream, AsyncGenerator)
    return stream


async def _opened(server: FakeApiServer) -> None:
    await server.until(lambda: server.open_watches["resourceslices"] == 1)


async def _start(api: RestKubeApi) -> str:
    return (await api.list(RESOURCE_SLICES)).resource_version


async def test_every_change_after_the_version_comes_in_order(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    created = await api.create(RESOURCE_SLICES, a_slice("s1"))
    async with aclosing(_watch(api, version)) as stream:
        assert await anext(stream) == WatchEvent("ADDED", created)
        changed = await api.replace(RESOURCE_SLICES, "s1", {**created, "spec": {**created["spec"], "devices": []}})
        assert await anext(stream) == WatchEvent("MODIFIED", changed)
        await api.delete(RESOURCE_SLICES, "s1")
        event = await anext(stream)
        assert (event.type, event.object["spec"]) == ("DELETED", changed["spec"])
        assert int(event.object["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])
    assert server.requests["watch", "resourceslices"] == 1


async def test_a_selector_filters_and_leaving_it_is_a_delete(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    server.put(RESOURCE_SLICES, a_slice("mine", node="n1"))
    server.put(RESOURCE_SLICES, a_slice("other", node="n2"))
    server.put(RESOURCE_SLICES, a_slice("mine", node="n2"))
    async with aclosing(_watch(api, version, field_selector="spec.nodeName=n1")) as stream:
        events = [await anext(stream), await anext(stream)]
    assert [(e.type, e.object["metadata"]["name"]) for e in events] == [("ADDED", "mine"), ("DELETED", "mine")]


async def test_bookmarks_carry_the_version_on(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    async with aclosing(_watch(api, version)) as stream:
        first = asyncio.ensure_future(anext(stream))
        await _opened(server)
        server.put(NODES, {"metadata": {"name": "somewhere else"}})
        server.send_bookmarks()
        event = await first
    assert event.type == "BOOKMARK"
    assert int(event.object["metadata"]["resourceVersion"]) > int(version)


async def test_an_end_in_good_order_is_the_end_of_the_iteration(server: FakeApiServer, api: RestKubeApi) -> None:
    events: list[WatchEvent] = []

    async def read() -> None:
        async with aclosing(_watch(api, await _start(api))) as stream:
            events.extend([event async for event in stream])

    reader = asyncio.create_task(read())
    await _opened(server)
    server.end_watches()
    await reader
    assert events == []


async def test_a_version_that_is_too_old_is_gone(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    server.put(RESOURCE_SLICES, a_slice("s1"))
    server.compact()
    with pytest.raises(Gone, match="too old resource version") as raised:
        await anext(_watch(api, version))
    assert raised.value.status == 410


async def test_a_version_of_the_future_hears_nothing(server: FakeApiServer) -> None:
    timeouts = Timeouts(watch_silence=0.03)
    async with RestKubeApi(FixedConnection(Connection(server.url)), timeouts=timeouts) as api:
        future = str(int(await _start(api)) + 1000)
        first = asyncio.ensure_future(anext(_watch(api, future)))
        await _opened(server)
        server.put(RESOURCE_SLICES, a_slice("s1"))
        server.send_bookmarks()
        with pytest.raises(Unreachable, match="no answer within"):
            await first


async def test_open_watches_survive_a_compaction(server: FakeApiServer, api: RestKubeApi) -> None:
    async with aclosing(_watch(api, await _start(api))) as stream:
        first = asyncio.ensure_future(anext(stream))
        await _opened(server)
        server.put(RESOURCE_SLICES, a_slice("s1"))
        server.compact()
        assert (await first).object["metadata"]["name"] == "s1"


async def test_a_cut_watch_is_unreachable(server: FakeApiServer, api: RestKubeApi) -> None:
    stream = _watch(api, await _start(api))
    first = asyncio.ensure_future(anext(stream))
    await _opened(server)
    server.cut_watches()
    with pytest.raises(Unreachable, match=f"reach API server {server.url}: "):
        await first


async def test_a_silent_watch_is_ended(server: FakeApiServer) -> None:
    timeouts = Timeouts(watch_silence=0.03)
    async with RestKubeApi(FixedConnection(Connection(server.url)), timeouts=timeouts) as api:
        with pytest.raises(Unreachable, match="no answer within the time limit"):
            await anext(_watch(api, await _start(api)))


async def test_a_refused_watch(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    server.faults.fail(429, verb="watch", retry_after=3)
    with pytest.raises(TooManyRequests) as raised:
        await anext(_watch(api, version))
    assert raised.value.retry_after == 3.0


async def test_objects_of_any_size_arrive_whole(server: FakeApiServer, api: RestKubeApi) -> None:
    version = await _start(api)
    text = "ü€" * 200_000
    devices = [a_device("gpu-0", attributes={"note": {"string": text}})]
    server.put(RESOURCE_SLICES, a_slice("big", devices=devices))
    server.put(RESOURCE_SLICES, a_slice("small"))
    async with aclosing(_watch(api, version)) as stream:
        big, small = await anext(stream), await anext(stream)
    assert big.object["spec"]["devices"][0]["attributes"]["note"]["string"] == text
    assert small.object["metadata"]["name"] == "small"


async def test_what_isnt_a_watch_event_is_an_error(server: FakeApiServer, api: RestKubeApi) -> None:
    server.faults.fail(200, verb="watch", times=2, raw_body=b'{"kind":"Status","code":200}\n')
    with pytest.raises(ApiError, match="unknown event type None"):
        await anext(_watch(api, "1"))
    server.faults.active.clear()
    server.faults.fail(200, verb="watch", raw_body=b'{"type":"ADDED","object":')
    with pytest.raises(Unreachable, match="cut in the middle"):
        await anext(_watch(api, "1"))


async def test_many_watches_leave_room_for_other_requests(server: FakeApiServer, api: RestKubeApi) -> None:
    """Each prepared claim has a watch, and HTTP/1.1 gives each a connection to itself."""
    version = await _start(api)
    server.put(NODES, {"metadata": {"name": "n1"}})
    streams = [_watch(api, version) for _ in range(150)]
    reads = [asyncio.ensure_future(anext(stream)) for stream in streams]
    try:
        async with asyncio.timeout(5):  # only ends a test that has failed
            await server.until(lambda: server.open_watches["resourceslices"] == len(streams))
        assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams))
