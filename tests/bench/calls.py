"""Prepare and unprepare as their callers see them: one, many in one call, many at once, and with claims held.

Samples of what is compared, other drivers included, are taken in turns, so that a machine that slows down meanwhile
slows all of them.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.bench.claims import Claim, Claims
from tests.bench.proc import usage
from tests.bench.report import Figures, median, memory, spread, times

ROUNDS = 2
CYCLES = 50
LEVELS = (0, 50, 200)
WARM_UP = 20
BATCHES = 10
IDLE_HELD_SECONDS = 10.0
SETTLE_SECONDS = 1.0


class Subject(Protocol):
    """A driver that is measured, gpuclaim or another one: its process, its claims, and timed calls (ms)."""

    @property
    def label(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def claims(self) -> Claims: ...

    async def prepare(self, *claims: Claim) -> float:
        """One call for all of them."""

    async def unprepare(self, *claims: Claim) -> float: ...

    async def empty_call(self) -> float:
        """Without claims: what gRPC itself needs."""


@dataclass(slots=True)
class _Samples:
    """Of one subject, in ms, by the number of claims held; ``cpu`` is per cycle."""

    get: dict[int, list[float]] = field(default_factory=lambda: {level: [] for level in LEVELS})
    prepare: dict[int, list[float]] = field(default_factory=lambda: {level: [] for level in LEVELS})
    unprepare: dict[int, list[float]] = field(default_factory=lambda: {level: [] for level in LEVELS})
    cpu: dict[int, list[float]] = field(default_factory=lambda: {level: [] for level in LEVELS})
    held: list[Claim] = field(default_factory=list)


async def calling(subjects: Sequence[Subject]) -> list[Figures]:
    """Leaves nothing prepared."""
    samples = [_Samples() for _ in subjects]
    figures: list[Figures] = [{} for _ in subjects]
    for subject in subjects:
        await _cycles([(subject, await subject.claims.make(WARM_UP))])
    for number in range(ROUNDS):
        for level in LEVELS:
            await _measure(subjects, samples, level)
        if number == ROUNDS - 1:
            for subject, found in zip(subjects, figures, strict=True):
                found |= await _idle_held(subject)
        for subject, taken in zip(subjects, samples, strict=True):
            for claim in taken.held:
                await subject.unprepare(claim)
            taken.held.clear()
    for taken, found in zip(samples, figures, strict=True):
        found |= _call_figures(taken)
    at_once = await _at_once(subjects, samples)
    return [found | more for found, more in zip(figures, at_once, strict=True)]


async def _measure(subjects: Sequence[Subject], samples: Sequence[_Samples], level: int) -> None:
    """With so many claims held by each, the cycles of all in turns."""
    work = []
    for subject, taken in zip(subjects, samples, strict=True):
        more = await subject.claims.make(level - len(taken.held), holders=True)
        for claim in more:
            await subject.prepare(claim)
        taken.held += more
        work.append((subject, await subject.claims.make(CYCLES)))
    await asyncio.sleep(SETTLE_SECONDS)
    before = [usage(subject.pid).cpu_ms for subject in subjects]
    cycles = await _cycles(work)
    for subject, taken, begun, times_ in zip(subjects, samples, before, cycles, strict=True):
        taken.cpu[level].append((usage(subject.pid).cpu_ms - begun) / CYCLES)
        for got, prepared, unprepared in times_:
            taken.get[level].append(got)
            taken.prepare[level].append(prepared)
            taken.unprepare[level].append(unprepared)


async def _cycles(work: Sequence[tuple[Subject, Sequence[Claim]]]) -> list[list[tuple[float, float, float]]]:
    """GET, prepare and unprepare of each claim; the subjects' first claims, then their second, and so on."""
    taken: list[list[tuple[float, float, float]]] = [[] for _ in work]
    for turn in zip(*(claims for _, claims in work), strict=True):
        for (subject, _), claim, cycles in zip(work, turn, taken, strict=True):
            got = await subject.claims.get(claim)
            cycles.append((got, await subject.prepare(claim), await subject.unprepare(claim)))
    return taken


async def _idle_held(subject: Subject) -> Figures:
    await asyncio.sleep(SETTLE_SECONDS)
    before = usage(subject.pid)
    await asyncio.sleep(IDLE_HELD_SECONDS)
    after = usage(subject.pid)
    wakeups = (after.wakeups - before.wakeups) / IDLE_HELD_SECONDS
    return {"memory held": memory(after), "idle wakeups held": f"{wakeups:.1f} ({after.threads})"}


async def _at_once(subjects: Sequence[Subject], samples: Sequence[_Samples]) -> list[Figures]:
    """A claim of each device in one call, and in as many calls at once, in turns; beside the floor of gRPC itself."""
    taken: list[dict[str, list[float]]] = [{"floor": [], "batch": [], "parallel": []} for _ in subjects]
    for _ in range(BATCHES):
        for subject, found in zip(subjects, taken, strict=True):
            claims = await subject.claims.make_for_all()
            found["floor"].append(await subject.empty_call())
            found["batch"].append(await subject.prepare(*claims))
            await subject.unprepare(*claims)
            claims = await subject.claims.make_for_all()
            found["parallel"].append(max(await asyncio.gather(*(subject.prepare(claim) for claim in claims))))
            await subject.unprepare(*claims)
    return [_at_once_figures(found, known) for found, known in zip(taken, samples, strict=True)]


def _at_once_figures(found: Mapping[str, Sequence[float]], known: _Samples) -> Figures:
    one, get = median(known.prepare[0]), median(known.get[0])
    figures = {name: f"{median(values):.1f}" for name, values in found.items()}
    for name in ("batch", "parallel"):
        figures[f"{name}/one"] = times(median(found[name]), one)
        figures[f"{name}/get"] = times(median(found[name]), get)
    return figures


def _call_figures(taken: _Samples) -> Figures:
    none, many = LEVELS[0], LEVELS[-1]
    get, prepare = median(taken.get[none]), median(taken.prepare[none])
    cpu = {level: sum(taken.cpu[level]) / ROUNDS for level in LEVELS}
    figures: Figures = {"get": f"{get:.1f}", "prepare 0-get": f"{prepare - get:.1f}"}
    for level in LEVELS:
        figures[f"prepare {level}"] = spread(taken.prepare[level])
        figures[f"prepare {level}/get"] = times(median(taken.prepare[level]), median(taken.get[level]))
        figures[f"prepare {level}/0"] = times(median(taken.prepare[level]), prepare)
    for level in (none, many):
        figures[f"unprepare {level}"] = spread(taken.unprepare[level])
        figures[f"unprepare {level}/get"] = times(median(taken.unprepare[level]), median(taken.get[level]))
    return figures | {
        "unprepare 200/0": times(median(taken.unprepare[many]), median(taken.unprepare[none])),
        "cpu 0": f"{cpu[none]:.1f}",
        "cpu 200": f"{cpu[many]:.1f}",
        "cpu 200/0": times(cpu[many], cpu[none]),
    }
