"""What is measured, each measure on a node whose agent the caller has started or not, as it says.

Samples of what is compared are taken in turns, so that a machine that slows down meanwhile slows all of them.
"""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import call_prepare
from tests.bench import syscalls
from tests.bench.node import GPUS, BenchNode, Claim
from tests.bench.proc import Usage, usage
from tests.bench.report import Figures, median, spread, times

STARTS = 5
ROUNDS = 2
CYCLES = 50
LEVELS = (0, 50, 200)
MEASURED, HOLDERS = range(GPUS - 1), range(GPUS - 1, GPUS)
"""GPUs whose claims come and go, and the one that all held claims are for: no measured one has sharers to ask for."""

BATCHES = 10
COUNTED = 20
GROWTH_CYCLES = 250
IDLE_SECONDS = 20.0
IDLE_HELD_SECONDS = 10.0
SETTLE_SECONDS = 1.0


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
        "memory": _memory(after),
        "idle wakeups": f"{(after.wakeups - before.wakeups) / IDLE_SECONDS:.1f} ({after.threads})",
        "idle cpu": f"{(after.cpu_ms - before.cpu_ms) / minutes:.0f}",
    }
    later = node.server.requests()
    if requests is not None and later is not None:
        figures["idle requests"] = _listed(later - requests, minutes)
    return figures


async def calling(node: BenchNode) -> Figures:
    """Leaves nothing prepared."""
    samples: dict[tuple[str, int], list[float]] = {
        (what, level): [] for what in ("get", "prepare", "unprepare", "cpu") for level in LEVELS
    }
    figures: Figures = {}
    await _cycles(node, await node.make_claims(COUNTED))
    for number in range(ROUNDS):
        held: list[Claim] = []
        for level in LEVELS:
            more = await node.make_claims(level - len(held), gpus=HOLDERS, admin=True)
            for claim in more:
                await node.prepare(claim)
            held += more
            claims = await node.make_claims(CYCLES, gpus=MEASURED)
            await asyncio.sleep(SETTLE_SECONDS)
            before = usage(node.pid)
            gets, prepares, unprepares = await _cycles(node, claims)
            samples["cpu", level].append((usage(node.pid).cpu_ms - before.cpu_ms) / CYCLES)
            samples["get", level] += gets
            samples["prepare", level] += prepares
            samples["unprepare", level] += unprepares
        if number == ROUNDS - 1:
            figures |= await _idle_held(node)
        for claim in held:
            await node.unprepare(claim)
    return figures | _call_figures(samples) | await _at_once(node, median(samples["prepare", 0]))


async def counting(node: BenchNode) -> Figures:
    """API requests of each call, where the server counts them."""
    claims = await node.make_claims(GPUS)
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
    }


async def growing(node: BenchNode) -> Figures:
    seen = []
    for _ in range(2):
        claims = await node.make_claims(GROWTH_CYCLES)
        for claim in claims:
            await node.prepare(claim)
            await node.unprepare(claim)
        await node.delete_claims(claims)
        await asyncio.sleep(SETTLE_SECONDS)
        seen.append(usage(node.pid))
    return {
        "memory later": _memory(seen[1]),
        "memory growth": f"{seen[1].anonymous_mb - seen[0].anonymous_mb:+.1f}",
    }


async def durable(node: BenchNode, counts: syscalls.SyscallCounts) -> Figures:
    """Starts and stops an agent of its own, in which the calls are counted."""
    async with node.agent(counts.environment):
        claims = await node.make_claims(COUNTED)
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


async def _cycles(node: BenchNode, claims: Sequence[Claim]) -> tuple[list[float], list[float], list[float]]:
    gets, prepares, unprepares = [], [], []
    for claim in claims:
        gets.append(await node.get(claim))
        prepares.append(await node.prepare(claim))
        unprepares.append(await node.unprepare(claim))
    return gets, prepares, unprepares


async def _idle_held(node: BenchNode) -> Figures:
    await asyncio.sleep(SETTLE_SECONDS)
    before = usage(node.pid)
    await asyncio.sleep(IDLE_HELD_SECONDS)
    after = usage(node.pid)
    wakeups = (after.wakeups - before.wakeups) / IDLE_HELD_SECONDS
    return {"memory held": _memory(after), "idle wakeups held": f"{wakeups:.1f} ({after.threads})"}


async def _at_once(node: BenchNode, one: float) -> Figures:
    """Eight claims in one call and eight calls at once, in turns; beside the floor that gRPC itself sets."""
    batches, parallels, floors = [], [], []
    for _ in range(BATCHES):
        claims = await node.make_claims(GPUS)
        floors.append(await _empty_call(node))
        batches.append(await node.prepare(*claims))
        await node.unprepare(*claims)
        claims = await node.make_claims(GPUS)
        parallels.append(max(await asyncio.gather(*(node.prepare(claim) for claim in claims))))
        await node.unprepare(*claims)
    return {
        "floor": f"{median(floors):.1f}",
        "batch": f"{median(batches):.1f}",
        "batch/one": times(median(batches), one),
        "parallel": f"{median(parallels):.1f}",
        "parallel/one": times(median(parallels), one),
    }


async def _empty_call(node: BenchNode) -> float:
    plugin = node.kubelet.plugins.choose(DRIVER_NAME)
    if plugin is None:
        raise RuntimeError("call the agent: it isn't registered")
    begun = time.perf_counter()
    await call_prepare(plugin, [], 5)
    return (time.perf_counter() - begun) * 1000


def _call_figures(samples: Mapping[tuple[str, int], list[float]]) -> Figures:
    none, many = LEVELS[0], LEVELS[-1]
    get, prepare = samples["get", none], samples["prepare", none]
    cpu = {level: sum(samples["cpu", level]) / ROUNDS for level in LEVELS}
    figures = {f"prepare {level}": spread(samples["prepare", level]) for level in LEVELS}
    figures |= {f"prepare {level}/0": times(median(samples["prepare", level]), median(prepare)) for level in LEVELS[1:]}
    unprepare = samples["unprepare", none], samples["unprepare", many]
    return figures | {
        "get": f"{median(get):.1f}",
        "prepare 0/get": times(median(prepare), median(get)),
        "prepare 0-get": f"{median(prepare) - median(get):.1f}",
        "unprepare 0": spread(unprepare[0]),
        "unprepare 200": spread(unprepare[1]),
        "unprepare 200/0": times(median(unprepare[1]), median(unprepare[0])),
        "cpu 0": f"{cpu[none]:.1f}",
        "cpu 200": f"{cpu[many]:.1f}",
        "cpu 200/0": times(cpu[many], cpu[none]),
    }


def _memory(seen: Usage) -> str:
    return f"{seen.rss_mb:.1f} / {seen.anonymous_mb:.1f}"


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
