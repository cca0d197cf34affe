"""The table: what was measured, beside what NVIDIA's DRA driver needed and what gpuclaim is meant to need.

Times of different machines and hours can't be compared, ratios can. NVIDIA's figures (its gpu-kubelet-plugin of
August 2026, 2 cores, API server 1.36.2) are from another day: set its ratios beside ours, not its milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figures = dict[str, str]
"""By a row's key."""


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    what: str
    peer: str = ""
    goal: str = ""


ROWS: Mapping[str, Sequence[Row]] = {
    "start": (
        Row("start", "process start to 8 GPUs in a slice, ms", "1058", "846"),
        Row("start/imports", "  : importing what it uses"),
        Row("restart writes", "restarts that wrote slices, nothing changed", "43 of 50", "0"),
    ),
    "calls": (
        Row("get", "the API server's own GET of a claim, p50, ms"),
        Row("floor", "a call without claims, p50, ms"),
        Row("prepare 0", "prepare one claim, none held, p50 / p99, ms", "11.5 / 21.8"),
        Row("prepare 0/get", "  : GET"),
        Row("prepare 0-get", "  beyond GET, ms", "", "0.5x of the peer's"),
        Row("prepare 50", "prepare, 50 claims held, p50 / p99, ms", "148"),
        Row("prepare 50/0", "  : none held", "12.9x", "1.1x"),
        Row("prepare 200", "prepare, 200 claims held, p50 / p99, ms", "544"),
        Row("prepare 200/0", "  : none held", "47.3x", "1.1x"),
        Row("unprepare 0", "unprepare, none held, p50 / p99, ms", "2.9"),
        Row("unprepare 200", "unprepare, 200 held, p50 / p99, ms", "116"),
        Row("unprepare 200/0", "  : none held", "40x", "1.1x"),
        Row("batch", "one call with 8 claims, p50, ms", "161"),
        Row("batch/one", "  : one claim", "14x", "2.1x"),
        Row("parallel", "8 calls at once, last answered, p50, ms", "743"),
        Row("parallel/one", "  : one call", "64.6x", "1.9x"),
    ),
    "cost": (
        Row("memory", "memory idle, RSS / anonymous, MB", "47.6 / 7.3", "RSS 71"),
        Row("memory later", "memory after 500 cycles more", "52.8 / 11.7", "no growth"),
        Row("memory growth", "  anonymous, cycles 250 to 500, MB", "", "0"),
        Row("memory held", "memory with 200 claims held"),
        Row("cpu 0", "CPU per prepare and unprepare, none held, ms", "10.7", "7.5"),
        Row("cpu 200", "CPU per prepare and unprepare, 200 held, ms", "818"),
        Row("cpu 200/0", "  : none held", "76x", "1.1x"),
        Row("requests prepare", "API requests per prepare", "1 get", "1 get"),
        Row("requests unprepare", "API requests per unprepare", "none", "none"),
        Row("durable prepare", "durable writes per prepare", "2 fsync, 3 rename, 4 flock", "1 commit, 1 rename"),
        Row("durable unprepare", "durable writes per unprepare"),
    ),
    "idle": (
        Row("idle requests", "API requests in an idle minute", "0.1", "0.1"),
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


def render(columns: Mapping[str, Figures]) -> str:
    """One column of ours for each API server."""
    heads = ["", *columns, "NVIDIA's", "goal"]
    lines: list[list[str]] = []
    for title, rows in ROWS.items():
        lines.append([title.upper(), *[""] * (len(heads) - 1)])
        for row in rows:
            ours = [figures.get(row.key, "-") for figures in columns.values()]
            lines.append([row.what, *ours, row.peer, row.goal])
    widths = [max(len(line[index]) for line in [heads, *lines]) for index in range(len(heads))]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [heads, *lines]
    )
    return "\n".join(line.rstrip() for line in padded)
