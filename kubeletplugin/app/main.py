"""`gpuclaim kubeletplugin`: settings, logs, and one Agent until it is told to stop."""

import asyncio
import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from kubeletplugin.app import logs, settings
from kubeletplugin.errors import AgentError, FatalError

log = logging.getLogger(__name__)

THREADS_SECONDS = 2.0
"""How long threads that are still at work at the orderly end may take; a pod's grace period has other uses."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 after a stop, 1 when it can't go on, 2 for bad flags or configuration."""
    rest = [word for word in arguments if word != "--print-config"]
    if "--help" in rest or "-h" in rest:
        return _print(settings.help_text())
    try:
        effective, warnings = settings.load(rest, os.environ)
    except FatalError as error:
        sys.stderr.write(f"gpuclaim kubeletplugin: {error}\n")
        return 2
    if "--print-config" in arguments:
        for warning in warnings:
            sys.stderr.write(f"gpuclaim kubeletplugin: {warning}\n")
        return _print("\n".join(effective.as_lines()))
    # C-core's own lines go to stderr in a form of their own, and say nothing that our errors don't.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    chosen = effective.settings
    logs.configure(chosen.log_level, chosen.log_format, chosen.node_name)
    for warning in warnings:
        log.warning("%s", warning)
    with asyncio.Runner() as runner:
        status = _status(runner, effective, rest)
        # The runner's end waits for each thread of the loop's, even one that a dead disk or a driver holds for ever.
        overdue = threading.Timer(THREADS_SECONDS, _leave, (status,))
        overdue.daemon = True
        overdue.start()
    overdue.cancel()
    return status


def _status(runner: asyncio.Runner, effective: settings.Effective, arguments: Sequence[str]) -> int:
    try:
        runner.run(_run(effective, arguments))
    except AgentError as error:
        log.error("%s", error)
        return 1
    except OSError as error:
        log.error("%s", _explain(error))
        log.debug("where it came from", exc_info=error)
        return 1
    except Exception:
        log.exception("end on an error that nobody foresaw")
        return 1
    return 0


def _leave(status: int) -> None:
    log.warning("end without the threads that are still blocked in a call:\n%s", logs.all_stacks(None))
    os._exit(status)


def _explain(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "free space there (or inodes: df -i)",
        errno.EROFS: "make it writable (the kernel log says why a disk isn't any more)",
        errno.EACCES: "run as root, or let the agent write there",
    }.get(error.errno or 0)
    where = f"use {error.filename}: {error.strerror}" if error.filename else str(error)
    return f"{where}; {advice}" if advice else where


def _print(text: str) -> int:
    try:
        print(text, flush=True)  # noqa: T201
    except OSError as error:
        sys.stderr.write(f"gpuclaim kubeletplugin: {error}\n")
        os._exit(1)
    return 0


async def _run(effective: settings.Effective, arguments: Sequence[str]) -> None:
    from kubeletplugin.app.agent import Agent
    from kubeletplugin.app.ends.http_door import AcceptTroubles
    from kubeletplugin.app.live_exclusions import LiveExclusions

    def reload() -> settings.Settings:
        return settings.load(arguments, os.environ)[0].settings

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(AcceptTroubles())
    exclusions = LiveExclusions(effective.settings, effective.config_file, reload)
    agent = Agent(effective.settings, exclusions=exclusions)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.stop)
    with logs.StacksOnSignal(loop):
        await agent.run()
