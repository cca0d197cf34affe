"""`python -m tests.soak`: all that is too long for CI, and one table at the end.

The cluster suite and the soak run against every Kubernetes release, each a pytest of its own on a node of its own, one
after the other; the default release gets the soak at full scale, the others at a part of it. What needs no node runs
once: the protocol's model within large bounds, and many more runs of the claims' state machine. The table is printed
and kept in the report's file; the exit code is 0 when it is well.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.cluster.harness import binaries, node
from tests.model import __main__ as model
from tests.soak import report

REPORT = "GPUCLAIM_SOAK_REPORT"
SCALE = "GPUCLAIM_SOAK_SCALE"
SHARE_OF_OTHERS = 0.25
"""Of the default release's scale: what differs between kubelets shows in a few repeats."""

FINISHED = (0, 1)
"""pytest's exit status when all passed, and when some failed."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Of pytest's; one case may take ``seconds``. ``expected`` are the counts that some case of it must tell."""

    path: str
    seconds: int
    marker: str = ""
    expected: Sequence[str] = ()

    def run(self, name: str, release: str, output: Path, environment: Mapping[str, str], *more: str) -> report.Run:
        begun = time.monotonic()
        marked = ("-m", self.marker) if self.marker else ()
        command = [
            *(sys.executable, "-m", "pytest", "-q", *marked, "--timeout", str(self.seconds)),
            *(f"--junit-xml={output}", "-o", "junit_family=xunit1", *more, self.path),
        ]
        status = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
        cases = list(report.read_cases(output)) if output.exists() else []
        if status not in FINISHED or not cases:
            cases.append(report.Case("pytest", 0, problem=f"it ended early (status {status}), see above"))
        return report.Run(release, name, cases, time.monotonic() - begun, self.expected)


ON_A_NODE = {
    "cluster": Suite("tests/cluster", 300, "cluster"),
    "soak": Suite("tests/soak", 3600, "soak", report.COUNTS),
}
CLAIMS = Suite("tests/contract/prepare/test_state_machine.py", 6 * 3600)
MODEL, MACHINE = "model", "claims"
SUITES = (*ON_A_NODE, MODEL, MACHINE)
NO_RELEASE = "any"
MODEL_JOBS, MODEL_MB = 2, 10_000
"""Together they fit in a machine of 24 GiB."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--release", action="append", help=f"one of {', '.join(binaries.releases())}; default: all")
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--scale", type=float, default=os.environ.get(SCALE, "1"), help=f"default: {SCALE} or 1")
    parser.add_argument("--times", type=int, default=1, help="how often, one after the other")
    return parser.parse_known_args()


def runs(options: argparse.Namespace, more: Sequence[str], folder: Path) -> Iterator[report.Run]:
    suites = options.suite or SUITES
    for number in range(options.times):
        for release in options.release or binaries.releases():
            for name in (name for name in ON_A_NODE if name in suites):
                scale = options.scale if release == binaries.default_release() else options.scale * SHARE_OF_OTHERS
                say(f"== Kubernetes {release}: {name} (scale {scale:g})")
                environment = {binaries.SELECTED: release, SCALE: str(scale)}
                yield ON_A_NODE[name].run(name, release, folder / f"{release}-{name}-{number}.xml", environment, *more)
        if MACHINE in suites:
            say("== the claims' state machine")
            yield CLAIMS.run(MACHINE, NO_RELEASE, folder / f"{MACHINE}-{number}.xml", {"GPUCLAIM_SOAK": "1"})
    if MODEL in suites:
        yield check_model()


def check_model() -> report.Run:
    """Once: it comes out the same each time."""
    say("== the protocol's model, large bounds")
    begun = time.monotonic()
    if reason := model.missing_tools():
        return report.Run(NO_RELEASE, MODEL, [report.Case("tools", 0, skipped=reason)], 0)
    cases = []
    for outcome in model.outcomes(model.within("large"), MODEL_MB, MODEL_JOBS):
        say(outcome.row())
        problem = "" if outcome.as_expected else outcome.row()
        cases.append(report.Case(outcome.case.name, outcome.seconds, {"states": str(outcome.states)}, problem))
    return report.Run(NO_RELEASE, MODEL, cases, time.monotonic() - begun)


def versions() -> Mapping[str, str]:
    runc = subprocess.run(["runc", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return {
        "gpuclaim": version("gpuclaim"),
        "Python": platform.python_version(),
        **binaries.shared_versions(),
        "runc": runc,
        "Linux": platform.release(),
    }


def main() -> int:
    options, more = arguments()
    on_a_node = not options.suite or not ON_A_NODE.keys().isdisjoint(options.suite)
    if on_a_node and (reason := node.missing_requirement()):
        say(f"soak: {reason}")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="gpuclaim-soak-"))
    done = list(runs(options, more, folder))
    text = report.render(done, versions())
    path = Path(os.environ.get(REPORT) or folder / "report.txt")
    path.write_text(f"{text}\n")
    say(f"{text}\n\nreport: {path}")
    return 0 if report.is_well(done) else 1


if __name__ == "__main__":
    sys.exit(main())
