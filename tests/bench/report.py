"""The table: what was measured, beside what NVIDIA's DRA driver needed and what gpuclaim is meant to need.

Times of different machines and hours can't be compared, ratios can. NVIDIA's figures (its gpu-kubelet-plugin of
August 2026, 2 cores, API server 1.36.2, 8 simulated H100) are from another day: set its ratios beside ours, not its
milliseconds, or measure it in the same run (others.py). A figure that has a goal is followed by its share of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.bench.proc import Usage

Figures = dict[str, str]
"""By a row's key."""


Section = Callable[[], tuple[str, "Sequence[Row]", Figures]]
"""Measures something of gpuclaim that needs no API server of the bench: title, rows, and the first column's figures."""


@dataclass(frozen=True, slots=True)
class Row:
    """``goal`` is the most that it should be, in the unit of the row."""

    key: str
    what: str
    peer: str = ""
    goal: float | None = None
    goal_text: str = ""
    """Where a number alone doesn't say it."""


ROWS: Mapping[str, Sequence[Row]] = {
    "start": (
        Row("start", "process start to 8 GPUs in a slice, ms", "1058", 846),
        Row("start/imports", "  : importing what it uses"),
        Row("restart writes", "restarts that wrote slices, nothing changed", "43 of 50", 0),
    ),
    "calls": (
        Row("get", "the API server's own GET of a claim, p50, ms"),
        Row("floor", "a call without claims, p50, ms"),
        Row("prepare 0", "prepare one claim, none held, p50 / p99, ms", "11.5 / 21.8"),
        Row("prepare 0/get", "  : GET"),
        Row("prepare 0-get", "  beyond GET, ms", "11.5 less its GET", goal_text="half of the peer's"),
        Row("prepare 50", "prepare, 50 claims held, p50 / p99, ms", "148"),
        Row("prepare 50/get", "  : GET"),
        Row("prepare 50/0", "  : none held", "12.9x", 1.1),
        Row("prepare 200", "prepare, 200 claims held, p50 / p99, ms", "544"),
        Row("prepare 200/get", "  : GET"),
        Row("prepare 200/0", "  : none held", "47.3x", 1.1),
        Row("unprepare 0", "unprepare, none held, p50 / p99, ms", "2.9"),
        Row("unprepare 0/get", "  : GET"),
        Row("unprepare 200", "unprepare, 200 held, p50 / p99, ms", "116"),
        Row("unprepare 200/get", "  : GET"),
        Row("unprepare 200/0", "  : none held", "40x", 1.1),
        Row("batch", "one call with 8 claims, p50, ms", "161"),
        Row("batch/get", "  : GET"),
        Row("batch/one", "  : one claim", "14x", 2.1),
        Row("parallel", "8 calls at once, last answered, p50, ms", "743"),
        Row("parallel/get", "  : GET"),
        Row("parallel/one", "  : one call", "64.6x", 1.9),
    ),
    "cost": (
        Row("memory", "memory idle, RSS / anonymous, MB", "47.6 / 7.3", 71),
        Row("memory later", "memory after 500 cycles more", "52.8 / 11.7", goal_text="no growth"),
        Row("memory growth", "  anonymous, cycles 250 to 500, MB", "", goal_text="0"),
        Row("memory held", "memory with 200 claims held"),
        Row("cpu 0", "CPU per prepare and unprepare, none held, ms", "10.7", 7.5),
        Row("cpu 200", "CPU per prepare and unprepare, 200 held, ms", "818"),
        Row("cpu 200/0", "  : none held", "76x", 1.1),
        Row("requests prepare", "API requests per prepare", "1 get", goal_text="1 get"),
        Row("requests unprepare", "API requests per unprepare", "none", goal_text="none"),
        Row("writes cycle", "  writes of both", "none"),
        Row(
            "durable prepare",
            "durable writes per prepare",
            "2 fsync, 3 rename, 4 flock",
            goal_text="1 commit, 1 rename",
        ),
        Row("durable unprepare", "durable writes per unprepare"),
    ),
    "idle": (
        Row("idle requests", "API requests in an idle minute", "0.1", goal_text="0.1"),
        Row("idle writes", "  writes of them", "", goal_text="none"),
        Row("idle wakeups", "wake-ups a second, idle (threads)"),
        Row("idle wakeups held", "wake-ups a second, idle with 200 held"),
        Row("idle cpu", "CPU in an idle minute, ms"),
        Row("idle durable", "durable writes in an idle minute"),
    ),
}


def percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 0.5)


def spread(samples: Sequence[float]) -> str:
    """p50 / p99."""
    return f"{median(samples):.1f} / {percentile(samples, 0.99):.1f}"


def times(part: float, whole: float) -> str:
    return f"{part / whole:.2f}x"


def memory(seen: Usage) -> str:
    return f"{seen.rss_mb:.1f} / {seen.anonymous_mb:.1f}"


def of_goal(figure: str, goal: float | None) -> str:
    """The figure, with its share of the goal where both are numbers and the goal isn't 0."""
    number = re.match(r"[\d.]+", figure)
    return f"{figure} ({float(number[0]) / goal:.0%})" if number and goal else figure


def render(columns: Mapping[str, Figures], more: Mapping[str, Sequence[Row]] | None = None) -> str:
    """One column of ours for each API server and one for each other driver; ``more`` are further sections."""
    heads = ["", *columns, "NVIDIA's", "goal"]
    lines: list[list[str]] = []
    for title, rows in {**ROWS, **(more or {})}.items():
        lines.append([title.upper(), *[""] * (len(heads) - 1)])
        for row in rows:
            ours = [of_goal(figures.get(row.key, "-"), row.goal) for figures in columns.values()]
            goal = row.goal_text or ("" if row.goal is None else f"{row.goal:g}")
            lines.append([row.what, *ours, row.peer, goal])
    widths = [max(len(line[index]) for line in [heads, *lines]) for index in range(len(heads))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [heads, *lines]
    )
    return "\n".join(line.rstrip() for line in padded)
