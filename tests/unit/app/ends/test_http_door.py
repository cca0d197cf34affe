"""What odd clients cost: an answer of 400 or their connection, never a stack in the log or somebody else's answer."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeletplugin.app.ends import http_door
from kubeletplugin.app.ends.http import HttpEnd
from kubeletplugin.app.ends.http_door import AcceptTroubles
from tests.unit.app.ends.test_http import Instance, get, listening, serving, until

pytestmark = pytest.mark.anyio

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send(port: int, data: bytes) -> Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


def close(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics HTTP/9.9\r\nHost: a\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n\x00\x00 \r\n\r\n",
    ],
)
async def test_what_is_no_request_is_400_and_no_line(request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Instance()) as end:
        connection = await send(await listening(end), request_)
        answer = await asyncio.wait_for(connection[0].read(), 10)
        close(connection)
        assert await get(end, "/healthz") == (200, "ok")
    assert answer.startswith(b"HTTP/1.1 400 ") or answer.startswith(b"HTTP/1.0 400 "), answer
    assert b"Traceback" not in answer
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_an_error_of_ours_is_500_and_told(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instance):
        async def scrape(self, accept: str) -> tuple[bytes, str]:
            raise RuntimeError("bug")

    async with serving(Broken()) as end:
        assert (await get(end, "/metrics"))[0] == 500
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /metrics HTTP/1.1\r\nHost: a\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
    ],
)
async def test_a_request_must_be_whole_soon(
    begun: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_door, "REQUEST_SECONDS", 0.02)
    async with serving(Instance()) as end:
        connection = await send(await listening(end), begun)
        await asyncio.wait_for(connection[0].read(), 10)
        close(connection)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_so_must_the_next_one_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "REQUEST_SECONDS", 0.02)
    async with serving(Instance()) as end:
        connection = await send(await listening(end), b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await asyncio.wait_for(connection[0].readuntil(b"ok"), 10)).startswith(b"HTTP/1.1 200")
        connection[1].write(b"GET /metr")
        assert await asyncio.wait_for(connection[0].read(), 10) == b""
        close(connection)


async def test_an_idle_connection_between_two_scrapes_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_door, "REQUEST_SECONDS", 0.02)
    async with serving(Instance()) as end:
        connection = await send(await listening(end), b"")
        for _ in range(2):
            connection[1].write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await asyncio.wait_for(connection[0].readuntil(b"ok"), 10)
            await asyncio.sleep(0.03)
        close(connection)


@asynccontextmanager
async def crowded(
    monkeypatch: pytest.MonkeyPatch, instance: Instance, data: bytes
) -> AsyncIterator[tuple[HttpEnd, list[Connection]]]:
    monkeypatch.setattr(http_door, "MOST_CONNECTIONS", 3)
    async with serving(instance) as end:
        port = await listening(end)
        crowd = [await send(port, data) for _ in range(3)]
        yield end, crowd
        close(*crowd)


async def test_a_crowd_that_sends_nothing_whole_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with crowded(monkeypatch, Instance(), b"GET /metr") as (end, crowd):
        for _ in range(5):
            assert await get(end, "/healthz") == (200, "ok")
        assert await asyncio.wait_for(crowd[0][0].read(), 10) == b""
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.startswith("3 HTTP connections are open")


async def test_whoever_is_being_answered_is_not_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    instance = Instance()
    instance.stuck = True
    monkeypatch.setattr("kubeletplugin.app.ends.http.STOP_SECONDS", 0.01)
    async with crowded(monkeypatch, instance, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n") as (end, crowd):
        await until(lambda: len(instance.accepted) == 3)
        late = await send(await listening(end), b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert await asyncio.wait_for(late[0].read(), 10) == b""
        close(late)
        assert not any(reader.at_eof() for reader, _ in crowd)


async def test_a_process_without_files_left_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    troubles, loop = AcceptTroubles(), asyncio.get_running_loop()
    for _ in range(3):
        troubles(loop, {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "too")})
    (record,) = caplog.records
    assert "raise the limit of open files" in record.getMessage() and record.exc_info is None
    troubles(loop, {"message": "another", "exception": OSError(errno.EIO, "disk")})
    assert caplog.records[1].getMessage().startswith("another")
