"""The agent's HTTP: what any of its ends answers, and the one that probes and Prometheus reach.

``GET /healthz`` is 200 while the event loop turns: a livenessProbe on it ends an agent whose loop stands still.
``GET /readyz`` is 200 when the instance is registered, active and its slices are accepted, else 503 with the reason.
``GET /metrics`` is Prometheus' text format, or OpenMetrics where it is asked for.

Nothing can be changed through it, and no request is logged. An address that can't be had doesn't end the agent, which
serves pods all the same: it says so once and tries until it can.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from kubeletplugin.app.ends.http_door import MOST_BYTES, GuardedSite, whole_request
from kubeletplugin.app.settings import parse_endpoint
from kubeletplugin.clock import Clock

log = logging.getLogger(__name__)

STOP_SECONDS = 1.0
"""What is left of a pod's grace period must not go to somebody who still waits for an answer."""
RETRY_SECONDS = 5.0

Unready = Callable[[], str]
Scrape = Callable[[str], Awaitable[tuple[bytes, str]]]


def new_application(unready: Unready, scrape: Scrape) -> web.Application:
    """``unready`` says why the instance isn't ready, empty when it is. ``scrape`` gets the request's Accept header and
    returns the exposition and its content type."""

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(request: web.Request) -> web.Response:
        reason = unready()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = await scrape(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    application = web.Application(client_max_size=MOST_BYTES, middlewares=[whole_request])
    application.router.add_get("/healthz", health)
    application.router.add_get("/readyz", ready)
    application.router.add_get("/metrics", metrics)
    return application


def new_runner(application: web.Application) -> web.AppRunner:
    """To be opened by GuardedSites, which set a connection's limits."""
    return web.AppRunner(application, access_log=None, shutdown_timeout=STOP_SECONDS)


class HttpEnd:
    """``run`` until cancelled, then nothing listens any more."""

    def __init__(self, endpoint: str, unready: Unready, scrape: Scrape, clock: Clock) -> None:
        self._host, self._port = parse_endpoint(endpoint)
        self._endpoint = endpoint
        self._application = new_application(unready, scrape)
        self._clock = clock
        self.addresses: tuple[Any, ...] = ()
        """As the kernel gave them; empty while none is to be had."""

    async def run(self) -> None:
        runner = new_runner(self._application)
        await runner.setup()
        try:
            await self._listen(runner)
            await asyncio.Event().wait()
        finally:
            self.addresses = ()
            await runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> None:
        told = ""
        while trouble := await self._bind(runner):
            if trouble != told:
                log.warning("serve metrics and probes at %s: %s; trying until it works", self._endpoint, trouble)
            told = trouble
            await self._clock.sleep(RETRY_SECONDS)
        self.addresses = tuple(runner.addresses)
        log.info("serve metrics and probes at %s", self._endpoint)

    async def _bind(self, runner: web.AppRunner) -> str:
        """Why it can't be; empty when it listens."""
        site = GuardedSite(runner, host=self._host, port=self._port)
        try:
            await site.start()
        except OSError as error:
            await site.stop()
            return error.strerror or str(error)
        return ""
