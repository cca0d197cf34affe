"""The soak's table, from what pytest wrote about each run (JUnit XML, with each case's figures as properties).

It is well when something passed in every suite, nothing failed, and the counts that matter were told and are 0. What
nobody counted is shown as "-", never as 0.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COUNTS = ("double_holds", "lost_claims", "leftovers")
"""What must be 0; a case that doesn't look for one of them has no figure of it."""

SHOWN = ("pods", "kills", *COUNTS)
UNKNOWN = "-"


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
    """One suite against one release. Each figure of ``expected`` must be told by a case that passed."""

    release: str
    suite: str
    cases: Sequence[Case]
    seconds: float
    expected: Sequence[str] = ()

    @property
    def passed(self) -> Sequence[Case]:
        return [case for case in self.cases if not case.problem and not case.skipped]

    def faults(self) -> Iterator[str]:
        """What is wrong with it beside cases that failed, and counts that aren't 0."""
        where = f"{self.release} {self.suite}"
        if not self.passed:
            yield f"{where}: no case passed"
        for name in self.expected:
            if total(self.passed, name) is None:
                yield f"{where}: nobody counted {_words(name)}"


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


def total(cases: Sequence[Case], name: str) -> int | None:
    """None when no case has it."""
    found = [int(case.figures[name]) for case in cases if case.figures.get(name, "").isdigit()]
    return sum(found) if found else None


def is_well(runs: Sequence[Run]) -> bool:
    cases = [case for run in runs for case in run.cases]
    failed = any(case.problem for case in cases) or any(total(cases, name) for name in COUNTS)
    return bool(runs) and not failed and not [fault for run in runs for fault in run.faults()]


def _words(name: str) -> str:
    return name.replace("_", " ")


def render(runs: Sequence[Run], versions: Mapping[str, str]) -> str:
    """Plain text: one table, then what failed or was skipped and each case's other figures."""
    heads = ["release", "suite and case", "result", "time", *map(_words, SHOWN)]
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
    found = total(cases, name)
    return UNKNOWN if found is None else str(found)


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
                yield f"{where}: " + ", ".join(f"{_words(name)} {value}" for name, value in others.items())
        yield from (f"NOT WELL {fault}" for fault in run.faults())


def _verdict(runs: Sequence[Run]) -> str:
    cases = [case for run in runs for case in run.cases]
    found = ", ".join(f"{_figure(cases, name)} {_words(name)}" for name in COUNTS)
    failed, passed = sum(bool(case.problem) for case in cases), sum(len(run.passed) for run in runs)
    return (
        f"\n{'well' if is_well(runs) else 'NOT WELL'}: {found}; {passed} of {len(cases)} cases passed, {failed} failed"
    )
