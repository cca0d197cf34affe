"""Runs the model checker over all cases and prints a table; `--story R_X` prints how it goes wrong without that rule.

Needs Debian's spin and a C compiler. Exit status 1 when something came out other than expected.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.model.cases import BROKEN, LARGE, SMALL, Case

MODEL = Path(__file__).parents[2] / "docs" / "protocol" / "gpuclaim.pml"
COMPILE = ("gcc", "-w", "-O2", "-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", "-DVECTORSZ=2048")
"""Every state is kept whole: pan's hash-compact mode (HC4) leaves most of this model's states out."""

SHORTEST = "-DBFS"
"""Breadth first finds a shortest story, depth first finds one sooner."""

_FOUND = re.compile(r"^pan:\d+: (.*?) \(at depth", re.MULTILINE)
_STATES = re.compile(r"^ *([0-9.e+]+) states, stored", re.MULTILINE)
_INCOMPLETE = ("max search depth too small", "out of memory", "Search not completed")


HEADER = f"""\
Each case `without` a rule must end in a counterexample, a story of docs/protocol; the others must hold.
{"case":44} {"states":>10} {"time":>8}  verdict"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``violated`` is the assertion that failed, empty when none did; ``trouble`` says why nothing is known."""

    case: Case
    states: int
    seconds: float
    violated: str = ""
    trouble: str = ""

    @property
    def as_expected(self) -> bool:
        return not self.trouble and bool(self.violated) == bool(self.case.story)

    def row(self) -> str:
        found = self.trouble or (
            f"counterexample found as expected: story {self.case.story}"
            if self.violated and self.case.story
            else self.violated
        )
        verdict = found or ("NOTHING FOUND" if self.case.story else "holds")
        without = "without " if self.case.story else ""
        return f"{without + self.case.name:44} {self.states:>10,} {self.seconds:>6.1f} s  {verdict}"


def check(case: Case, folder: Path, memory_mb: int, *more: str) -> Outcome:
    """Leaves the trail of a story in ``folder``."""
    begun = time.monotonic()
    for command in (
        ("spin", *case.flags, "-a", str(MODEL)),
        (*COMPILE, *more, f"-DMEMLIM={memory_mb}", "pan.c", "-o", "pan"),
    ):
        done = _run(command, folder)
        if done.returncode:
            return Outcome(case, 0, 0.0, trouble=f"{command[0]}: {(done.stdout + done.stderr).strip()}")
    done = _run(("./pan", "-E", "-n", "-m1000000"), folder)
    states = _STATES.search(done.stdout)
    trouble = next((words for words in _INCOMPLETE if words in done.stdout + done.stderr), "")
    found = _FOUND.search(done.stdout)
    if states is None or done.returncode:
        trouble = trouble or f"pan ended with {done.returncode}: {done.stderr.strip()}"
    return Outcome(
        case,
        int(float(states[1])) if states else 0,
        time.monotonic() - begun,
        violated=found[1] if found else "",
        trouble="" if found and case.story else trouble,
    )


def story(case: Case, folder: Path) -> str:
    done = _run(("spin", *case.flags, "-t", "-k", f"{MODEL.name}.trail", str(MODEL)), folder)
    said = (line.strip() for line in done.stdout.splitlines())
    return "\n".join(line for line in said if re.match(r"(API|agent|kubelet|runtime|REBOOT|calm|the ) ?", line))


def _run(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def missing_tools() -> str:
    """Empty when all are there."""
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    return f"checking the model needs {' and '.join(missing)}: apt-get install spin gcc" if missing else ""


def within(bounds: str) -> tuple[Case, ...]:
    return (*BROKEN, *SMALL, *(LARGE if bounds == "large" else ()))


def outcomes(cases: Sequence[Case], memory_mb: int, jobs: int) -> Iterator[Outcome]:
    """In their order. ``memory_mb`` is for each of the ``jobs`` searches that run at a time."""
    with tempfile.TemporaryDirectory(prefix="gpuclaim-model-") as root:
        folders = [Path(root, str(number)) for number in range(len(cases))]
        for folder in folders:
            folder.mkdir()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(check, cases, folders, [memory_mb] * len(cases))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("--bounds", choices=("small", "large"), default="small")
    parser.add_argument(
        "--story", choices=[case.name for case in BROKEN], help="print how it goes wrong without this rule"
    )
    parser.add_argument("--memory", type=int, default=4000, help="MB for one search")
    options = parser.parse_args(arguments)
    if reason := missing_tools():
        print(reason, file=sys.stderr)
        return 1
    cases = within(options.bounds)
    if options.story:
        return _tell(next(case for case in BROKEN if case.name == options.story), options.memory)
    print(HEADER)
    good = True
    for outcome in outcomes(cases, options.memory, len(os.sched_getaffinity(0))):
        print(outcome.row(), flush=True)
        good = good and outcome.as_expected
    return 0 if good else 1


def _tell(case: Case, memory_mb: int) -> int:
    with tempfile.TemporaryDirectory(prefix="gpuclaim-model-") as folder:
        outcome = check(case, Path(folder), memory_mb, SHORTEST)
        print(outcome.row())
        print(story(case, Path(folder)))
    return 0 if outcome.as_expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
