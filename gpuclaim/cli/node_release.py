"""Releasing a draining device through the active agent's own socket; without an agent there is nobody to do it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from gpuclaim.cli.node_status import SECONDS, find_sockets
from kubeletplugin.errors import FatalError

_NOT_HERE = 404
_NOT_NOW = 503


class UnknownDevice(FatalError):
    """No device of that name on this node."""


async def look(plugin_dir: Path, device: str) -> dict[str, Any]:
    """What drains there, as of app.ends.release_routes. Raises FatalError, UnknownDevice."""
    return await _ask(plugin_dir, device, None)


async def release(plugin_dir: Path, device: str, shown: Sequence[int]) -> dict[str, Any]:
    """Ends the drains with these ids."""
    return await _ask(plugin_dir, device, {"shown": list(shown)})


def describe(drains: dict[str, Any]) -> str:
    """What is still there and what it means to release it."""
    lines = []
    for drain in drains["drains"]:
        holder = drain["holder"]
        name = f"{holder['namespace']}/{holder['name']}" if holder["name"] else "a holder that nobody knows"
        lines.append(f"{drains['device']} ({drains['uuid']}) drains since {drain['since']}, last held by {name}")
        lines.append(f"  left: {drain['reason'] or 'nothing that could be seen'}")
        for pod in drain["pods"]:
            known = f"{pod['namespace']}/{pod['name']} ({pod['uid']})" if pod["name"] else pod["uid"]
            lines.append(f"  pod {known}: pid {', '.join(map(str, pod['pids']))}")
    lines.append(
        "Once released it may be given to another claim at once. What is left there keeps its memory, and may go on"
        " computing, beside the new holder: its work may fail or slow down. A pod that hangs in the kernel needs a"
        " reboot."
    )
    return "\n".join(lines)


async def _ask(plugin_dir: Path, device: str, body: dict[str, Any] | None) -> dict[str, Any]:
    """Only the active instance does it; the others say that they aren't."""
    sockets = await asyncio.to_thread(find_sockets, plugin_dir)
    refusals = []
    for path in sockets:
        try:
            status, answer = await _request(path, device, body)
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PermissionError):
                raise FatalError(f"ask the agent at {path}: {error.os_error.strerror}; run this as root") from error
        except TimeoutError:
            refusals.append(f"the agent at {path} hasn't answered within {SECONDS:g} s")
        except (aiohttp.ClientError, ValueError) as error:
            refusals.append(f"the agent at {path} gave no answer ({type(error).__name__}: {error})")
        else:
            if isinstance(answer, dict):
                return answer
            if status != _NOT_NOW:
                raise (UnknownDevice if status == _NOT_HERE else FatalError)(answer)
            refusals.append(answer)
    why = "; ".join(refusals) or f"no agent runs here (looked in {plugin_dir}, see --kubelet-root-dir)"
    raise FatalError(f"release {device}: {why}")


async def _request(path: Path, device: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any] | str]:
    url = f"http://agent/drains/{quote(device, safe='')}" + ("" if body is None else "/release")
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
        session.request("GET" if body is None else "POST", url, json=body) as response,
    ):
        return response.status, await response.json() if response.ok else await response.text()
