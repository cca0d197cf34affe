"""What keeps an HTTP end from costing the agent more than itself, whoever connects to it.

A process has a bounded number of open files, which the kubelet's calls, the ledger and the API server need. So at most
MOST_CONNECTIONS are open at one end; when one more comes, the one closes that has been without a whole request
longest: a probe gets its answer, however many others just sit there. A request must be whole soon after its
first byte. What isn't HTTP is answered with 400 and is nobody's error here: no line of log, no stack.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
REQUEST_SECONDS = 5.0
"""From the first byte of a request, or from the connection's begin, to the request's last byte."""
IDLE_SECONDS = 65.0
"""A connection without a new request for so long is closed: longer than the usual minute between two scrapes."""
BACKLOG = 64
"""How many wait in the kernel, and are accepted at one turn of the loop: by so many MOST_CONNECTIONS can be exceeded
for a moment."""
MOST_BYTES = 4096
"""Of a request's line, of a header and of a body: nobody has a reason to send more."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """Idle from its begin, and from each answer, until the next request is whole."""

    __slots__ = ("_door", "_overdue")

    def __init__(self, door: "Door", server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=IDLE_SECONDS,
            max_line_size=MOST_BYTES,
            max_field_size=MOST_BYTES,
            auto_decompress=False,
            # What is left of a broken body isn't waited for.
            lingering_time=0.0,
        )
        self._door = door
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect()
        self._door.came(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_expecting()
        self._door.went(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._door.is_idle(self):
            self._expect()
        super().data_received(data)

    def whole(self) -> None:
        self._stop_expecting()
        self._door.busy(self)

    def answered(self) -> None:
        self._door.idle(self)

    def _expect(self) -> None:
        if self._overdue is None:
            self._overdue = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self.force_close)

    def _stop_expecting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        theirs = status == 400 or isinstance(exc, ConnectionError)
        if not theirs:
            return super().handle_error(request, status, exc, message)
        log.debug("a request that can't be answered: %s", message or exc)
        answer = web.Response(status=400, text="400: this isn't a request that is understood here\n")
        answer.force_close()
        return answer


class Door:
    """All connections of one end."""

    def __init__(self) -> None:
        self._idle: dict[_Connection, None] = {}
        self._busy: set[_Connection] = set()
        self._told = False

    def came(self, connection: _Connection) -> None:
        if len(self._idle) + len(self._busy) >= MOST_CONNECTIONS:
            self._tell()
            oldest = next(iter(self._idle), connection)
            oldest.force_close()
            self.went(oldest)
            if oldest is connection:
                return
        self._idle[connection] = None

    def went(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)
        self._busy.discard(connection)
        if len(self._idle) + len(self._busy) < MOST_CONNECTIONS // 2:
            self._told = False

    def is_idle(self, connection: _Connection) -> bool:
        return connection in self._idle

    def busy(self, connection: _Connection) -> None:
        if self._idle.pop(connection, self) is None:
            self._busy.add(connection)

    def idle(self, connection: _Connection) -> None:
        if connection in self._busy:
            self._busy.discard(connection)
            self._idle[connection] = None

    def _tell(self) -> None:
        if not self._told:
            log.warning(
                "%d HTTP connections are open: closing the idle ones that are oldest; look who connects to the agent",
                MOST_CONNECTIONS,
            )
        self._told = True


@web.middleware
async def whole_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The body is read before anything is done for it; a broken one is the sender's error."""
    connection = request.protocol
    try:
        await request.read()
    except (web.RequestPayloadError, ValueError) as error:
        raise web.HTTPBadRequest(text="400: the request's body is broken\n") from error
    if not isinstance(connection, _Connection):
        return await handler(request)
    connection.whole()
    try:
        return await handler(request)
    finally:
        connection.answered()


class GuardedSite(web.BaseSite):
    """Listens at ``host`` and ``port``, or with ``sock``, for a runner whose application has ``whole_request``."""

    __slots__ = ("_where",)

    def __init__(
        self, runner: web.AppRunner, *, host: str | None = None, port: int = 0, sock: socket.socket | None = None
    ) -> None:
        super().__init__(runner, backlog=BACKLOG)
        self._where: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}

    @property
    def name(self) -> str:
        return str(self._where)

    async def start(self) -> None:
        await super().start()
        loop, server, door = asyncio.get_running_loop(), self._runner.server, Door()
        assert server is not None
        self._server = await loop.create_server(lambda: _Connection(door, server, loop), backlog=BACKLOG, **self._where)


class AcceptTroubles:
    """An event loop's exception handler for a process that has no file left to open: asyncio would tell each failed
    try to accept a connection, with a stack, many times a second."""

    def __init__(self, every: float = 60.0) -> None:
        """``every``: seconds between two lines."""
        self._every = every
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif loop.time() >= self._next:
            self._next = loop.time() + self._every
            log.error(
                "accept a connection: %s; raise the limit of open files (ulimit -n, fs.file-max), or look who keeps"
                " connections to the agent open",
                error.strerror,
            )
