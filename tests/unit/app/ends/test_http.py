"""The end that probes and Prometheus reach: answers, limits, and an address that can't be had."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from kubeletplugin.app.ends import http, http_door
from kubeletplugin.app.ends.http import HttpEnd
from kubeletplugin.app.settings import Settings, parse_endpoint
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Instance:
    def __init__(self) -> None:
        self.reason = ""
        self.accepted: list[str] = []
        self.stuck = False

    def unready(self) -> str:
        return self.reason

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        self.accepted.append(accept)
        if self.stuck:
            await asyncio.Event().wait()
        return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def serving(
    instance: Instance, endpoint: str = "127.0.0.1:0", clock: VirtualClock | None = None
) -> AsyncIterator[HttpEnd]:
    end = HttpEnd(endpoint, instance.unready, instance.scrape, clock or VirtualClock())
    task = asyncio.create_task(end.run())
    try:
        yield end
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def listening(end: HttpEnd) -> int:
    await until(lambda: end.addresses)
    port: int = end.addresses[0][1]
    return port


async def get(end: HttpEnd, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    url = f"http://127.0.0.1:{await listening(end)}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as response:
        return response.status, await response.text()


async def test_answers(caplog: pytest.LogCaptureFixture) -> None:
    instance = Instance()
    with caplog.at_level(logging.INFO):
        async with serving(instance) as end:
            assert await get(end, "/healthz") == (200, "ok")
            assert await get(end, "/readyz") == (200, "ok")
            assert await get(end, "/metrics", Accept="application/openmetrics-text") == (200, "up 1\n")
            instance.reason = "the kubelet hasn't registered this instance yet"
            assert await get(end, "/readyz") == (503, instance.reason)
            assert (await get(end, "/healthz"))[0] == 200
    assert instance.accepted == ["application/openmetrics-text"]
    assert [record.getMessage() for record in caplog.records] == ["serve metrics and probes at 127.0.0.1:0"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/status", 404), ("POST", "/metrics", 405), ("GET", "/metrics?" + "a" * 5000, 400)],
)
async def test_nothing_else_is_answered(method: str, path: str, status: int) -> None:
    async with serving(Instance()) as end:
        assert (await get(end, path, method))[0] == status


async def test_who_sends_no_whole_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "REQUEST_SECONDS", 0.02)
    async with serving(Instance()) as end:
        reader, writer = await asyncio.open_connection("127.0.0.1", await listening(end))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_a_taken_port_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        clock, instance = VirtualClock(), Instance()
        async with serving(instance, f"127.0.0.1:{port}", clock) as end:
            for _ in range(3):
                await clock.until_asleep()
                await clock.advance(http.RETRY_SECONDS)
            assert end.addresses == ()
            other.close()
            await clock.until_asleep()
            await clock.advance(http.RETRY_SECONDS)
            assert await get(end, "/healthz") == (200, "ok")
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith(f"serve metrics and probes at 127.0.0.1:{port}: ")
    assert "address already in use" in line and line.endswith("; trying until it works")


async def test_the_end_waits_a_moment_for_who_is_being_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "STOP_SECONDS", 0.01)
    instance = Instance()
    instance.stuck = True
    async with serving(instance) as end:
        request = asyncio.create_task(get(end, "/metrics"))
        await until(lambda: instance.accepted)
    with pytest.raises(aiohttp.ClientError):
        await request


@pytest.mark.parametrize(
    ("endpoint", "parsed"),
    [
        (":8080", (None, 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9400", ("::1", 9400)),
        ("node.local:0", ("node.local", 0)),
    ],
)
def test_endpoints(endpoint: str, parsed: tuple[str | None, int]) -> None:
    assert parse_endpoint(endpoint) == parsed
    assert Settings.model_validate({"http_endpoint": endpoint}).http_endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["8080", "localhost", ":http", ":70000", "::1:80", "a:-1", ":"])
def test_what_is_no_endpoint(endpoint: str) -> None:
    with pytest.raises(ValueError, match="must be ADDRESS:PORT"):
        Settings.model_validate({"http_endpoint": endpoint})
