"""What the node's agent knows, through its own socket when one runs, else from the ledger's file."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from kubeletplugin.app import control
from kubeletplugin.app.active import LEDGER_FILE
from kubeletplugin.errors import FatalError
from kubeletplugin.ledger.files import read_snapshot
from kubeletplugin.prepare.status import render

SECONDS = 10.0


async def read_status(plugin_dir: Path) -> dict[str, Any]:
    """The active instance's answer, else any instance's, else the file's. FatalError when there is nothing."""
    sockets = await asyncio.to_thread(lambda: sorted(plugin_dir.glob(f"{control.PREFIX}*{control.SUFFIX}")))
    answers = [answer for answer in [await _ask(path) for path in sockets] if answer is not None]
    for answer in answers:
        if answer.get("state") == "active":
            return answer
    if answers:
        return answers[0]
    ledger = plugin_dir / LEDGER_FILE
    if not await asyncio.to_thread(ledger.exists):
        raise FatalError(f"no agent runs here and there is no ledger: looked in {plugin_dir} (see --kubelet-root-dir)")
    return {"state": "no agent runs; from the ledger's file", **render(await asyncio.to_thread(read_snapshot, ledger))}


async def _ask(path: Path) -> dict[str, Any] | None:
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session:
        try:
            async with session.get("http://agent/status") as response:
                answer: dict[str, Any] = await response.json()
                return answer
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
