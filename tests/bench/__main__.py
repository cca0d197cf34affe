"""`python -m tests.bench`: measures the agent beside each API server that can be had, and prints one table.

No figure is asserted here: a slow machine isn't wrong. An error in what is measured ends the run.
"""

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench import measures, servers, syscalls
from tests.bench.node import BenchNode
from tests.bench.report import Figures, render


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def measure(folder: Path, server: servers.Server) -> Figures:
    """What doesn't depend on the API server is measured beside the one that counts requests."""
    figures: Figures = {}
    whole = server.requests() is not None
    node = BenchNode(folder, server)
    await node.start()
    try:
        say(f"{server.label}: starts ...")
        figures |= await measures.starting(node)
        async with node.agent():
            if whole:
                say(f"{server.label}: idle ...")
                figures |= await measures.idling(node)
                figures |= await measures.counting(node)
                say(f"{server.label}: memory ...")
                figures |= await measures.growing(node)
            say(f"{server.label}: calls ...")
            figures |= await measures.calling(node)
        if whole:
            figures |= await durable(node, folder)
    except BaseException:
        log = folder / "agent.log"
        say(f"the agent's log ends so:\n{log.read_text()[-3000:] if log.exists() else '(none)'}")
        raise
    finally:
        await node.stop()
    return figures


async def durable(node: BenchNode, folder: Path) -> Figures:
    if reason := syscalls.missing_requirement():
        say(f"durable writes aren't counted: {reason}")
        return {}
    return await measures.durable(node, await asyncio.to_thread(syscalls.build, folder))


def run(start: Callable[[Path], AbstractContextManager[servers.Server]]) -> tuple[str, Figures]:
    """On a folder of its own, with a short path: a socket's has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))
    try:
        with start(folder) as server:
            return server.label, asyncio.run(measure(folder, server))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    if reason := servers.missing_requirement():
        say(f"bench: {reason}")
        return 1
    begun = time.monotonic()
    columns = dict([run(servers.fake_server)])
    tools = servers.cached_binaries()
    if tools is None:
        say("no kube-apiserver in the cache (make cluster-test builds it): only the in-memory one is measured")
    else:
        columns |= [run(lambda folder: servers.real_server(folder, tools))]
    print(render(columns))
    say(f"{time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
