"""What the node's agent knows, through its own socket when one runs, else from the ledger's file."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from kubeletplugin.app.active import LEDGER_FILE
from kubeletplugin.dra.sockets import STATUS_PREFIX, STATUS_SUFFIX
from kubeletplugin.errors import FatalError
from kubeletplugin.ledger.files import read_snapshot
from kubeletplugin.prepare.status import render

SECONDS = 10.0
"""How long an agent may take to answer."""


class _NoAnswerError(Exception):
    """Somebody listens, and doesn't say what was asked."""


async def read_status(plugin_dir: Path) -> dict[str, Any]:
    """The active instance's answer, else any instance's, else the file's. FatalError when there is nothing.

    An instance that isn't active knows no devices: they come from the file then, since the one that does may hang.
    """
    sockets = await asyncio.to_thread(find_sockets, plugin_dir)
    outcomes = await asyncio.gather(*map(_ask, sockets), return_exceptions=True)
    answers, silent = [], []
    for outcome in outcomes:
        if isinstance(outcome, _NoAnswerError):
            silent.append(str(outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
        elif outcome is not None:
            answers.append(outcome)
    answers.sort(key=lambda answer: answer.get("state") != "active")
    if answers and "devices" in answers[0]:
        return answers[0]
    known = await asyncio.to_thread(_from_file, plugin_dir / LEDGER_FILE)
    if known is None and not answers and not silent:
        raise FatalError(f"no agent runs here and there is no ledger: looked in {plugin_dir} (see --kubelet-root-dir)")
    state = "; ".join(silent or ["no agent runs"]) + ("; from the ledger's file" if known is not None else "")
    return {"state": state, **(known or {}), **(answers[0] if answers else {})}


def find_sockets(plugin_dir: Path) -> list[Path]:
    """Of all instances, also of those that are gone."""
    try:
        names = [path for path in plugin_dir.iterdir() if path.name.startswith(STATUS_PREFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise FatalError(f"look for the agent in {plugin_dir}: {error.strerror}; run this as root") from error
    return sorted(path for path in names if path.suffix == STATUS_SUFFIX)


def _from_file(ledger: Path) -> dict[str, Any] | None:
    return render(read_snapshot(ledger)) if ledger.exists() else None


async def _ask(path: Path) -> dict[str, Any] | None:
    """None when nobody listens: the socket of an instance that is gone."""
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session:
        try:
            async with session.get("http://agent/status") as response:
                if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    raise _NoAnswerError(f"the agent at {path} can't tell now: {await response.text()}")
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, PermissionError):
                raise FatalError(f"ask the agent at {path}: {error.os_error.strerror}; run this as root") from error
            return None
        except TimeoutError as error:
            raise _NoAnswerError(f"the agent at {path} hasn't answered within {SECONDS:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise _NoAnswerError(f"the agent at {path} gave no answer ({type(error).__name__}: {error})") from error
