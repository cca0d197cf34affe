"""This instance's own HTTP end, on a UNIX socket in the plugin's folder: what `gpuclaim status` and
`gpuclaim release` ask.

``GET /status`` answers JSON: the instance, whether it is active, and, when it is, devices, holders and drains. For
root only, since it names claims and pods of all namespaces; 503 with the reason when it can't be told now. The rest is
what app.ends.http answers everywhere.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from kubeletplugin.app.ends.http import Scrape, Unready, new_application, new_runner
from kubeletplugin.app.ends.http_door import GuardedSite
from kubeletplugin.dra.sockets import STATUS_PREFIX, STATUS_SUFFIX, first_that_fits, short_token
from kubeletplugin.errors import NotActiveError, RecoverableError

Status = Callable[[], Awaitable[dict[str, Any]]]


def socket_path(plugin_dir: Path, driver: str, uid: str) -> Path:
    short = short_token(driver, uid)
    return first_that_fits(
        plugin_dir / f"{STATUS_PREFIX}{uid}{STATUS_SUFFIX}", plugin_dir / f"{STATUS_PREFIX}{short}{STATUS_SUFFIX}"
    )


class ControlServer:
    def __init__(
        self, path: Path, status: Status, unready: Unready, scrape: Scrape, more: Iterable[web.RouteDef] = ()
    ) -> None:
        """``more``: what else is answered here."""
        self._path = path
        self._status = status
        self._unready = unready
        self._scrape = scrape
        self._more = more
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        application = new_application(self._unready, self._scrape)
        application.router.add_get("/status", self._get_status)
        application.router.add_routes(self._more)
        self._runner = new_runner(application)
        await self._runner.setup()
        self._path.unlink(missing_ok=True)
        await GuardedSite(self._runner, sock=_bound(self._path)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self._path.unlink(missing_ok=True)

    async def _get_status(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await self._status())
        except (NotActiveError, RecoverableError) as error:
            return web.Response(status=503, text=str(error))


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
