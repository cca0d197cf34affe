"""Whatever an API server, or something in its place, answers: one class and one line."""

import asyncio
import traceback

import pytest
from aiohttp import web

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi import errors
from kubeapi.client import NODES, RESOURCE_SLICES
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeapi.transport import Timeouts
from tests.contract.kubeapi.objects import a_slice

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (400, errors.ApiError, "BadRequest"),
        (401, errors.Unauthorized, "Unauthorized"),
        (403, errors.Forbidden, "Forbidden"),
        (404, errors.NotFound, "NotFound"),
        (409, errors.Conflict, "Conflict"),
        (410, errors.Gone, "Expired"),
        (422, errors.Invalid, "Invalid"),
        (429, errors.TooManyRequests, "TooManyRequests"),
        (500, errors.ServerError, "InternalError"),
        (503, errors.ServerError, "ServiceUnavailable"),
    ],
)
async def test_a_status_becomes_its_class(
    server: FakeApiServer, api: RestKubeApi, code: int, kind: type[errors.ApiError], reason: str
) -> None:
    server.faults.fail(code, message="because", retry_after=7 if code == 429 else 0)
    with pytest.raises(errors.ApiError) as raised:
        await api.get(NODES, "n1")
    assert type(raised.value) is kind
    assert (raised.value.status, raised.value.reason, raised.value.message) == (code, reason, "because")
    assert raised.value.retry_after == (7.0 if code == 429 else None)
    assert server.requests["get", "nodes"] == 1


async def test_a_proxys_page_is_quoted_in_short(server: FakeApiServer, api: RestKubeApi) -> None:
    server.faults.fail(502, raw_body=b"<html>\n<h1>Bad   Gateway</h1>" + b"x" * 1000)
    with pytest.raises(errors.ServerError) as raised:
        await api.list(NODES)
    assert raised.value.status == 502
    assert raised.value.message.startswith(
        f"read the answer of {server.url}: Bad Gateway without a Status object: <html>"
    )
    assert "<h1>Bad Gateway</h1>xx" in raised.value.message
    assert len(raised.value.message) < 350


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b""])
async def test_a_success_that_is_no_object_is_an_error(server: FakeApiServer, api: RestKubeApi, body: bytes) -> None:
    server.faults.fail(200, raw_body=body)
    with pytest.raises(errors.ApiError, match="not a JSON object"):
        await api.list(NODES)


async def test_a_redirect_is_not_followed(server: FakeApiServer) -> None:
    async def redirect(request: web.Request) -> web.Response:
        raise web.HTTPFound(f"{server.url}{request.path}")

    application = web.Application()
    application.router.add_get("/{path:.*}", redirect)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with RestKubeApi(FixedConnection(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}"))) as api:
            with pytest.raises(errors.ApiError, match="Found without a Status object"):
                await api.get(NODES, "n1")
    finally:
        await runner.cleanup()
    assert server.requests.total() == 0, "no token goes where we didn't send it"


async def test_nobody_listening(server: FakeApiServer, api: RestKubeApi) -> None:
    await server.stop()
    with pytest.raises(errors.Unreachable) as raised:
        await api.get(NODES, "n1")
    assert str(raised.value) == f"reach API server {server.url}: connection refused"
    await server.start()
    with pytest.raises(errors.NotFound):
        await api.get(NODES, "n1")


async def test_a_host_without_an_address() -> None:
    async with RestKubeApi(FixedConnection(Connection("http://api.invalid:1"))) as api:
        with pytest.raises(errors.Unreachable, match=r"http://api\.invalid:1: no address for this host name"):
            await api.get(NODES, "n1")


async def test_no_answer_in_time(server: FakeApiServer) -> None:
    server.faults.hang()
    async with RestKubeApi(FixedConnection(Connection(server.url)), timeouts=Timeouts(total=0.02)) as api:
        with pytest.raises(errors.Unreachable, match="no answer within the time limit"):
            await api.get(NODES, "n1")


async def test_an_answer_that_is_lost_after_the_write(server: FakeApiServer, api: RestKubeApi) -> None:
    server.faults.drop(verb="create", done=True)
    with pytest.raises(errors.Unreachable, match="closed the connection before it answered"):
        await api.create(RESOURCE_SLICES, a_slice("s1"))
    assert [s["metadata"]["name"] for s in server.objects(RESOURCE_SLICES)] == ["s1"]


async def test_an_idle_connection_that_the_server_closed_costs_nothing(server: FakeApiServer, api: RestKubeApi) -> None:
    server.put(NODES, {"metadata": {"name": "n1"}})
    await api.get(NODES, "n1")
    server.cut_connections()
    await asyncio.sleep(0)
    assert (await api.get(NODES, "n1"))["metadata"]["name"] == "n1"


async def test_a_proxy_that_refuses_is_told_without_its_password() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        connection = Connection("https://10.0.0.1", proxy=f"http://user:secret@127.0.0.1:{port}")
        async with RestKubeApi(FixedConnection(connection)) as api:
            with pytest.raises(errors.Unreachable) as raised:
                await api.get(NODES, "n1")
    assert raised.value.message == (
        "reach API server https://10.0.0.1: the proxy refused: 407 Proxy Authentication Required"
    )
    assert "secret" not in "".join(traceback.format_exception(raised.value))
