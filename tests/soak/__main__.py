"""`python -m tests.soak`: the cluster suite and the soak against every Kubernetes release, and one table at the end.

Each suite is a pytest of its own on a node of its own, one after the other. The default release gets the soak at full
scale, the others at a part of it. The table is printed and kept in the report's file; the exit code is 0 when it is
well.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from tests.cluster.harness import binaries, node
from tests.soak import report

REPORT = "GPUCLAIM_SOAK_REPORT"
SCALE = "GPUCLAIM_SOAK_SCALE"
SHARE_OF_OTHERS = 0.25
"""Of the default release's scale: what differs between kubelets shows in a few repeats."""

FINISHED = (0, 1)
"""pytest's exit status when all passed, and when some failed."""

SUITES = {"cluster": "300", "soak": "3600"}
"""And the seconds that one case may take."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--release", action="append", help=f"one of {', '.join(binaries.releases())}; default: all")
    parser.add_argument("--suite", action="append", choices=list(SUITES), help="default: both")
    parser.add_argument("--scale", type=float, default=os.environ.get(SCALE, "1"), help=f"default: {SCALE} or 1")
    parser.add_argument("--times", type=int, default=1, help="how often, one after the other")
    return parser.parse_known_args()


def runs(options: argparse.Namespace, more: Sequence[str], folder: Path) -> Iterator[report.Run]:
    for number in range(options.times):
        for release in options.release or binaries.releases():
            for suite in options.suite or SUITES:
                scale = options.scale if release == binaries.default_release() else options.scale * SHARE_OF_OTHERS
                output = folder / f"{release}-{suite}-{number}.xml"
                say(f"== Kubernetes {release}: {suite} (scale {scale:g})")
                begun = time.monotonic()
                environment = {**os.environ, binaries.SELECTED: release, SCALE: str(scale)}
                command = [
                    *(sys.executable, "-m", "pytest", "-q", "-m", suite, "--timeout", SUITES[suite]),
                    *(f"--junit-xml={output}", "-o", "junit_family=xunit1", *more, f"tests/{suite}"),
                ]
                status = subprocess.run(command, env=environment, check=False).returncode
                cases = list(report.read_cases(output)) if output.exists() else []
                if status not in FINISHED or not cases:
                    cases.append(report.Case("pytest", 0, problem=f"it ended early (status {status}), see above"))
                yield report.Run(release, suite, cases, time.monotonic() - begun)


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
    if reason := node.missing_requirement():
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
