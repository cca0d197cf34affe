"""What is measured beside the calls (calls.py), on a node whose agent the caller has started or not, as each says."""

import asyncio
import sys
import time
from collections import Counter

from tests.bench import syscalls
from tests.bench.calls import IDLE_HELD_SECONDS, SETTLE_SECONDS, Subject
from tests.bench.node import BenchNode
from tests.bench.proc import usage
from tests.bench.report import Figures, median, memory, times

STARTS = 5
COUNTED = 20
GROWTH_CYCLES = 250
IDLE_SECONDS = 20.0


async def starting(node: BenchNode) -> Figures:
    """Starts and stops agents of its own."""
    starts, imports = [], []
    await _seconds_to_import(node)
    for _ in range(STARTS):
        imports.append(await _seconds_to_import(node))
        starts.append(await node.seconds_until_published())
        await node.stop_agent()
        await node.wipe_slices()
    async with node.agent():
        await asyncio.sleep(SETTLE_SECONDS)
    wrote = 0
    for _ in range(STARTS):
        before = await node.slice_versions()
        async with node.agent():
            await asyncio.sleep(SETTLE_SECONDS)
        wrote += before != await node.slice_versions()
    return {
        "start": f"{median(starts) * 1000:.0f}",
        "start/imports": times(median(starts), median(imports)),
        "restart writes": f"{wrote} of {STARTS}",
    }


async def idling(node: BenchNode) -> Figures:
    """Begun soon after a start, with nothing prepared."""
    await asyncio.sleep(SETTLE_SECONDS)
    requests, before = node.server.requests(), usage(node.pid)
    await asyncio.sleep(IDLE_SECONDS)
    after, minutes = usage(node.pid), IDLE_SECONDS / 60
    figures = {
        "memory": memory(after),
        "idle wakeups": f"{(after.wakeups - before.wakeups) / IDLE_SECONDS:.1f} ({after.threads})",
        "idle cpu": f"{(after.cpu_ms - before.cpu_ms) / minutes:.0f}",
    }
    later = node.server.requests()
    if requests is not None and later is not None:
        figures["idle requests"] = _listed(later - requests, minutes)
        figures["idle writes"] = _listed(_writes(later - requests), minutes)
    return figures


async def counting(node: BenchNode) -> Figures:
    """API requests of each call, where the server counts them."""
    claims = await node.claims.make_for_all()
    begun = node.server.requests()
    if begun is None:
        return {}
    for claim in claims:
        await node.prepare(claim)
    await asyncio.sleep(SETTLE_SECONDS)
    prepared = node.server.requests() or Counter()
    for claim in claims:
        await node.unprepare(claim)
    await asyncio.sleep(SETTLE_SECONDS)
    ended = node.server.requests() or Counter()
    return {
        "requests prepare": _listed(prepared - begun, len(claims)),
        "requests unprepare": _listed(ended - prepared, len(claims)),
        "writes cycle": _listed(_writes(ended - begun), len(claims)),
    }


async def growing(subject: Subject) -> Figures:
    seen = []
    for _ in range(2):
        claims = await subject.claims.make(GROWTH_CYCLES)
        for claim in claims:
            await subject.prepare(claim)
            await subject.unprepare(claim)
        await subject.claims.delete(claims)
        await asyncio.sleep(SETTLE_SECONDS)
        seen.append(usage(subject.pid))
    return {
        "memory later": memory(seen[1]),
        "memory growth": f"{seen[1].anonymous_mb - seen[0].anonymous_mb:+.1f}",
    }


async def durable(node: BenchNode, counts: syscalls.SyscallCounts) -> Figures:
    """Starts and stops an agent of its own, in which the calls are counted."""
    async with node.agent(counts.environment):
        claims = await node.claims.make(COUNTED)
        prepare, unprepare = Counter[str](), Counter[str]()
        for claim in claims:
            begun = counts.read()
            await node.prepare(claim)
            between = counts.read()
            await node.unprepare(claim)
            prepare += between - begun
            unprepare += counts.read() - between
        await asyncio.sleep(SETTLE_SECONDS)
        begun = counts.read()
        await asyncio.sleep(IDLE_HELD_SECONDS)
        idle = counts.read() - begun
    return {
        "durable prepare": _listed(prepare, COUNTED),
        "durable unprepare": _listed(unprepare, COUNTED),
        "idle durable": _listed(idle, IDLE_HELD_SECONDS / 60),
    }


def _writes(requests: Counter[str]) -> Counter[str]:
    return Counter({name: count for name, count in requests.items() if name.split()[0] not in ("get", "list", "watch")})


def _listed(counts: Counter[str], of: float) -> str:
    """Each per one of ``of``; what comes to less than a twentieth is left out."""
    rates = ((count / of, name) for name, count in sorted(counts.items()))
    return ", ".join(f"{rate:.3g} {name}" for rate, name in rates if rate >= 0.05) or "none"


async def _seconds_to_import(node: BenchNode) -> float:
    """What the agent uses, in a fresh interpreter."""
    code = "import kubeletplugin.app.agent, kubeletplugin.app.main"
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=node.environment)
    if await process.wait() != 0:
        raise RuntimeError(f"run {code!r}: it failed")
    return time.perf_counter() - begun
