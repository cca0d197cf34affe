"""What `gpuclaim release` asks of the active instance, over its control socket.

``GET /drains/DEVICE`` shows what drains there and what is left; ``POST /drains/DEVICE/release`` with the ids that were
shown ends these. 404: no such device; 409: it isn't draining; 503: this instance can't do it now (it isn't active).
The text says why. Who asked is read from the socket, not from the request.
"""

import socket
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.prepare.by_hand import Draining, NotDrainingError, UnknownDeviceError

_CREDENTIALS = struct.Struct("3i")
_NO_LOGIN = 0xFFFFFFFF


class Releases(Protocol):
    """Implemented by app.active. Raises UnknownDeviceError, NotDrainingError, NotActiveError, RecoverableError."""

    async def drains(self, device: str) -> Sequence[Draining]: ...

    async def release(self, device: str, shown: Collection[int], who: str) -> Sequence[Draining]: ...

    def pod(self, uid: str) -> PodRecord | None: ...


def routes(releases: Releases, proc: Path) -> list[web.RouteDef]:
    """``proc`` is the host's /proc."""

    async def show(request: web.Request) -> web.Response:
        return await _answer(releases, releases.drains(request.match_info["device"]))

    async def release(request: web.Request) -> web.Response:
        body = await request.json()
        work = releases.release(request.match_info["device"], body["shown"], _peer(request, proc))
        return await _answer(releases, work)

    return [web.get("/drains/{device}", show), web.post("/drains/{device}/release", release)]


async def _answer(releases: Releases, work: Any) -> web.Response:
    try:
        return web.json_response(_render(releases, await work))
    except UnknownDeviceError as error:
        return web.Response(status=404, text=str(error))
    except NotDrainingError as error:
        return web.Response(status=409, text=str(error))
    except (NotActiveError, RecoverableError) as error:
        return web.Response(status=503, text=str(error))


def _render(releases: Releases, drains: Sequence[Draining]) -> dict[str, Any]:
    device = drains[0].hold.device
    return {
        "device": device.name,
        "uuid": device.uuid,
        "drains": [
            {
                "id": draining.hold.id,
                "holder": {
                    "route": draining.hold.holder.route.value,
                    "uid": draining.hold.holder.id,
                    "namespace": draining.hold.holder.namespace,
                    "name": draining.hold.holder.name,
                },
                "since": draining.hold.since,
                "reason": draining.reason,
                "pods": [_pod(releases, uid, pids) for uid, pids in sorted(draining.pids.items())],
            }
            for draining in drains
        ],
    }


def _pod(releases: Releases, uid: str, pids: Collection[int]) -> dict[str, Any]:
    known = releases.pod(uid)
    return {
        "uid": uid,
        "namespace": known.namespace if known else "",
        "name": known.name if known else "",
        "pids": sorted(pids),
    }


def _peer(request: web.Request, proc: Path) -> str:
    """``uid 0, logged in as uid 1000``: who acts as root here has most often become it by sudo."""
    peer = request.transport.get_extra_info("socket") if request.transport is not None else None
    if peer is None or peer.family != socket.AF_UNIX:
        return "unknown"
    pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:
        login = int((proc / str(pid) / "loginuid").read_text())
    except (OSError, ValueError):
        login = _NO_LOGIN
    return f"uid {uid}" + (f", logged in as uid {login}" if login not in (_NO_LOGIN, uid) else "")
