"""The soak's table, from what pytest wrote about each run (JUnit XML, with each case's figures as properties).

A release is well when every case of it passed and the three counts that matter are 0 everywhere.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COUNTS = ("double_holds", "lost_claims", "leftovers")
"""What must be 0; a case that doesn't look for one of them has no figure of it."""

SHOWN = ("pods", "kills", *COUNTS)


@dataclass(frozen=True, slots=True)
class Case:
    """``problem`` is the first line of why it failed, ``skipped`` why it didn't run."""

    name: str
    seconds: float
    figures: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One suite against one release."""

    release: str
    suite: str
    cases: Sequence[Case]
    seconds: float


def read_cases(path: Path) -> Iterator[Case]:
    """Of a JUnit file of pytest's. A case whose fixture failed at its end has two entries; the worse counts."""
    cases: dict[str, Case] = {}
    for entry in ET.parse(path).getroot().iter("testcase"):
        case = _case(entry)
        known = cases.get(case.name)
        if known is None or not known.problem:
            cases[case.name] = case
    yield from cases.values()


def _case(entry: ET.Element) -> Case:
    wrong = entry.find("failure")
    wrong = entry.find("error") if wrong is None else wrong
    skipped = entry.find("skipped")
    return Case(
        name=f"{entry.get('classname', '').rpartition('.')[2]}.{entry.get('name', '')}",
        seconds=float(entry.get("time", 0)),
        figures={each.get("name", ""): each.get("value", "") for each in entry.iter("property")},
        problem="" if wrong is None else (wrong.get("message") or "failed").splitlines()[0],
        skipped="" if skipped is None else skipped.get("message") or "skipped",
    )


def total(cases: Sequence[Case], name: str) -> int:
    return sum(int(case.figures[name]) for case in cases if case.figures.get(name, "").isdigit())


def is_well(runs: Sequence[Run]) -> bool:
    cases = [case for run in runs for case in run.cases]
    return bool(cases) and not any(case.problem for case in cases) and not any(total(cases, name) for name in COUNTS)


def render(runs: Sequence[Run], versions: Mapping[str, str]) -> str:
    """Plain text: one table, then what failed or was skipped and each case's other figures."""
    heads = ["release", "suite and case", "result", "time", *(name.replace("_", " ") for name in SHOWN)]
    lines: list[list[str]] = []
    for run in runs:
        lines.append(_line(run.release, f"{run.suite}: all", run.cases, run.seconds))
        lines += [_line("", f"  {case.name}", [case], case.seconds) for case in run.cases if case.figures]
    releases = dict.fromkeys(run.release for run in runs)
    for release in releases:
        cases = [case for run in runs if run.release == release for case in run.cases]
        spent = sum(run.seconds for run in runs if run.release == release)
        lines.append(_line(release, "TOTAL", cases, spent))
    table = _table(heads, lines)
    return "\n".join(["", *_versions(versions), "", *table, "", *_notes(runs), _verdict(runs)])


def _line(release: str, what: str, cases: Sequence[Case], seconds: float) -> list[str]:
    failed = sum(bool(case.problem) for case in cases)
    skipped = sum(bool(case.skipped) for case in cases)
    counts = {"failed": failed, "passed": len(cases) - failed - skipped, "skipped": skipped}
    result = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing ran"
    shown = [_figure(cases, name) for name in SHOWN]
    return [release, what, result if len(cases) != 1 else result.split()[-1], _time(seconds), *shown]


def _figure(cases: Sequence[Case], name: str) -> str:
    return str(total(cases, name)) if any(name in case.figures for case in cases) else ""


def _time(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[index]) for line in [heads, *lines]) for index in range(len(heads))]
    rows = [heads, ["-" * width for width in widths], *lines]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _versions(versions: Mapping[str, str]) -> list[str]:
    return [", ".join(f"{name} {version}" for name, version in versions.items())]


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        for case in run.cases:
            where = f"{run.release} {case.name}"
            if case.problem:
                yield f"FAILED {where}: {case.problem}"
            if case.skipped:
                yield f"skipped {where}: {case.skipped}"
            others = {name: value for name, value in case.figures.items() if name not in SHOWN}
            if others:
                yield f"{where}: " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in others.items())


def _verdict(runs: Sequence[Run]) -> str:
    cases = [case for run in runs for case in run.cases]
    found = ", ".join(f"{total(cases, name)} {name.replace('_', ' ')}" for name in COUNTS)
    failed = sum(bool(case.problem) for case in cases)
    return f"\n{'well' if is_well(runs) else 'NOT WELL'}: {found}; {failed} of {len(cases)} cases failed"
