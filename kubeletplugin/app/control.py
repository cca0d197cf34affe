"""This instance's own HTTP end, on a UNIX socket in the plugin's folder: what `gpuclaim status` asks.

``GET /status`` answers JSON: the instance, whether it is active, and, when it is, devices, holders and drains.
``GET /readyz`` is 200 when the instance is registered, active and its slices are accepted, else 503 with the reason.
"""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from kubeletplugin.dra.sockets import STATUS_PREFIX, STATUS_SUFFIX, first_that_fits, short_token

STOP_SECONDS = 1.0
"""What is left of a pod's grace period must not go to somebody who still waits for an answer."""

Status = Callable[[], Awaitable[dict[str, Any]]]
Unready = Callable[[], str]


def socket_path(plugin_dir: Path, driver: str, uid: str) -> Path:
    short = short_token(driver, uid)
    return first_that_fits(
        plugin_dir / f"{STATUS_PREFIX}{uid}{STATUS_SUFFIX}", plugin_dir / f"{STATUS_PREFIX}{short}{STATUS_SUFFIX}"
    )


class ControlServer:
    """``unready`` says why the instance isn't ready, empty when it is."""

    def __init__(self, path: Path, status: Status, unready: Unready) -> None:
        self._path = path
        self._status = status
        self._unready = unready
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/status", self._get_status)
        application.router.add_get("/readyz", self._get_ready)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_SECONDS)
        await self._runner.setup()
        self._path.unlink(missing_ok=True)
        await web.SockSite(self._runner, _bound(self._path)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    async def _get_status(self, request: web.Request) -> web.Response:
        return web.json_response(await self._status())

    async def _get_ready(self, request: web.Request) -> web.Response:
        reason = self._unready()
        return web.Response(text=reason or "ok", status=503 if reason else 200)


def _bound(path: Path) -> socket.socket:
    """For root only before anybody can connect, which needs the listen that comes later."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener
