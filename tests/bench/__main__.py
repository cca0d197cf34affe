"""`python -m tests.bench`: measures the agent beside each API server that can be had, and prints one table.

With ``--other NAME=SOCKET`` another driver is measured in turns with ours, beside one API server (others.py says how it
is started). No figure is asserted here: a slow machine isn't wrong. An error in what is measured ends the run.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.bench import calls, imports, measures, others, servers, syscalls, waking
from tests.bench.node import BenchNode
from tests.bench.report import Figures, Row, Section, render

SECTIONS: Sequence[Section] = (imports.section, waking.section)
"""Further sections of the table."""

StartServer = Callable[[Path], AbstractContextManager[servers.Server]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def measure(folder: Path, server: servers.Server, beside: "Beside") -> dict[str, Figures]:
    """By column. What doesn't depend on the API server is measured beside the one that counts requests."""
    figures: Figures = {}
    whole = server.requests() is not None
    node = BenchNode(folder, server)
    await node.start()
    try:
        say(f"{server.label}: starts ...")
        figures |= await measures.starting(node)
        async with node.agent():
            drivers = await beside.meet(node)
            subjects: list[calls.Subject] = [node, *drivers]
            columns: dict[str, Figures] = {subject.label: {} for subject in subjects}
            if whole:
                say(f"{server.label}: idle ...")
                figures |= await measures.idling(node)
                figures |= await measures.counting(node)
            if whole or drivers:
                for subject in subjects:
                    say(f"{subject.label}: memory ...")
                    columns[subject.label] |= await measures.growing(subject)
            say(f"{server.label}: calls ...")
            for subject, found in zip(subjects, await calls.calling(subjects), strict=True):
                columns[subject.label] |= found
            for driver in drivers:
                await driver.close()
        if whole:
            figures |= await durable(node, folder)
    except BaseException:
        log = folder / "agent.log"
        say(f"the agent's log ends so:\n{log.read_text()[-3000:] if log.exists() else '(none)'}")
        raise
    finally:
        await node.stop()
    columns[node.label] |= figures
    return columns


async def durable(node: BenchNode, folder: Path) -> Figures:
    if reason := syscalls.missing_requirement():
        say(f"durable writes aren't counted: {reason}")
        return {}
    return await measures.durable(node, await asyncio.to_thread(syscalls.build, folder))


class Beside:
    """The other drivers, and how they learn of the API server."""

    def __init__(self, wanted: Sequence[others.Other], kubeconfig: Path | None) -> None:
        self._wanted = list(wanted)
        self._kubeconfig = kubeconfig

    async def meet(self, node: BenchNode) -> list[others.OtherDriver]:
        if not self._wanted or self._kubeconfig is None:
            return []
        await others.make_nodes(node.api, self._wanted)
        await asyncio.to_thread(others.write_kubeconfig, self._kubeconfig, node.server)
        for other in self._wanted:
            say(f"start {other.name} now: KUBECONFIG={self._kubeconfig}, node {other.node}, socket {other.socket}")
        return [await others.meet(node.api, other) for other in self._wanted]


def run(start: StartServer, beside: Beside) -> dict[str, Figures]:
    """On a folder of its own, with a short path: a socket's has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir="/tmp"))
    try:
        with start(folder) as server:
            return asyncio.run(measure(folder, server, beside))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def arguments() -> tuple[list[others.Other], Path | None]:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--other", action="append", default=[], metavar="NAME=SOCKET", type=others.Other.parse)
    parser.add_argument("--kubeconfig", type=Path, help="where to write the one for the other drivers")
    options = parser.parse_args()
    if options.other and options.kubeconfig is None:
        parser.error("--other needs --kubeconfig: the other driver must learn where the API server is")
    return options.other, options.kubeconfig


def all_columns(wanted: Sequence[others.Other], kubeconfig: Path | None) -> dict[str, Figures]:
    """Beside both API servers, or with other drivers beside one: they can't be moved from one to the next."""
    beside, tools = Beside(wanted, kubeconfig), servers.cached_binaries()
    starts: list[StartServer] = [servers.fake_server]
    if tools is None:
        say("no kube-apiserver in the cache (make cluster-test builds it): only the in-memory one is measured")
    else:
        real: StartServer = lambda folder: servers.real_server(folder, tools)  # noqa: E731
        starts = [real] if wanted else [*starts, real]
    columns: dict[str, Figures] = {}
    for start in starts:
        columns |= run(start, beside)
    return columns


def main() -> int:
    wanted, kubeconfig = arguments()
    if reason := servers.missing_requirement():
        say(f"bench: {reason}")
        return 1
    begun = time.monotonic()
    columns = all_columns(wanted, kubeconfig)
    more: dict[str, Sequence[Row]] = {}
    for section in SECTIONS:
        title, rows, figures = section()
        more[title] = rows
        columns[next(iter(columns))] |= figures
    print(render(columns, more))
    say(f"{time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
