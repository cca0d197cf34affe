"""One HTTP session to one API server: connection reuse, time limits, credentials, errors.

aiohttp itself, which is also what ``kubernetes.aio`` sends its requests through: its ApiClient adds decoding into
generated models, which drops fields of a newer server, and 20 MB of imports, and nothing that is used here. No rate
limit and no retry of its own, apart from one try with fresh credentials after a 401: what may be repeated, and how
urgent it is, only the caller knows.
"""

import asyncio.sslproto
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from kubeapi.credentials import Connection, ConnectionSource
from kubeapi.errors import ConfigError
from kubeapi.failures import from_exception, from_response, from_status_object, not_json
from kubeapi.proxy import environment_proxy
from kubeapi.slowness import Slowness

_log = logging.getLogger(__name__)

_KEEPALIVE = 75.0
"""Seconds an idle connection is kept: below the API server's 90, so that it is we who close it. Long, because a new
TLS handshake costs a prepare more than the GET itself."""

TLS_READ_BUFFER = 32 * 1024
"""Bytes, twice the longest TLS record. asyncio's own 256 KB are allocated and zeroed for each connection, and every
watched claim has one: 200 of them made an agent of 77 MB one of 147."""

asyncio.sslproto.SSLProtocol.max_size = TLS_READ_BUFFER


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits in seconds. A watch has no total one: it is only ended when it has been silent."""

    connect: float = 5.0
    total: float = 30.0
    slow: float = 5.0
    """When a request that still waits for its answer is told of."""
    watch_silence: float = 150.0
    """The server sends a bookmark about every minute when it has nothing else to say."""


class Transport:
    """Requests with JSON bodies in and out. Raises errors.ApiError."""

    def __init__(self, source: ConnectionSource, timeouts: Timeouts, user_agent: str) -> None:
        self._source = source
        self._timeouts = timeouts
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        self._session: aiohttp.ClientSession | None = None
        self._slowness = Slowness(_log, timeouts.slow)

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """One request and its answer, whole."""
        timeout = aiohttp.ClientTimeout(total=self._timeouts.total, connect=self._timeouts.connect)
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": content_type} if data is not None else {}
        server = (await self._source.current()).url
        with self._slowness.watched(server, method, path):
            async with self._answer(method, path, params or {}, data, headers, timeout) as (url, response):
                content = await response.read()
        try:
            parsed = json.loads(content)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise not_json(url, response.status, content)
        return parsed

    async def lines(self, path: str, *, params: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """The JSON objects of a watch, one a line, of any length. Ends when the server ends it in good order."""
        timeout = aiohttp.ClientTimeout(
            total=None, connect=self._timeouts.connect, sock_read=self._timeouts.watch_silence
        )
        async with self._answer("GET", path, params, None, {}, timeout) as (url, response):
            buffer = bytearray()
            async for chunk in response.content.iter_any():
                start = len(buffer)
                buffer += chunk
                if buffer.find(b"\n", start) < 0:
                    continue
                *whole, rest = bytes(buffer).split(b"\n")
                buffer = bytearray(rest)
                for line in whole:
                    if line.strip():
                        yield _frame(url, line)
            if buffer.strip():
                raise from_exception(url, aiohttp.ClientPayloadError())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[tuple[str, aiohttp.ClientResponse]]:
        """The response of a request that succeeded; what goes wrong while its body is read is mapped here too."""
        connection = await self._source.current()
        retried = False
        while True:
            try:
                async with self._request(connection, method, path, params, data, headers, timeout) as response:
                    if response.status < 300:
                        yield connection.url, response
                        return
                    error = from_response(
                        connection.url,
                        response.status,
                        response.reason or "",
                        response.headers,
                        await response.read(),
                    )
            except aiohttp.ClientResponseError as e:
                # Unchained: its own text holds the proxy's URL with the password, and logs show causes.
                raise from_exception(connection.url, e) from None
            except (aiohttp.ClientError, OSError) as e:
                raise from_exception(connection.url, e) from e
            if error.status != 401 or retried:
                raise error
            try:
                fresh = await self._source.renew(connection)
            except ConfigError as e:
                raise error from e
            if fresh is connection:
                raise error
            connection, retried = fresh, True

    def _request(
        self,
        connection: Connection,
        method: str,
        path: str,
        params: Mapping[str, str],
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                # No limit: every watch keeps a connection to itself, and past a limit nothing else would get one.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE),
                headers=self._headers,
            )
        sent = dict(headers)
        if connection.authorization:
            sent["Authorization"] = connection.authorization
        return self._session.request(
            method,
            connection.url + path,
            params=params,
            data=data,
            headers=sent,
            timeout=timeout,
            # A redirect would carry the token to somebody else.
            allow_redirects=False,
            ssl=connection.tls if connection.tls is not None else True,
            server_hostname=connection.server_hostname or None,
            proxy=connection.proxy or environment_proxy(connection.url),
        )


def _frame(url: str, line: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise not_json(url, 200, line)
    if parsed.get("type") == "ERROR":
        raise from_status_object(parsed.get("object") or {}, status=500)
    return parsed
