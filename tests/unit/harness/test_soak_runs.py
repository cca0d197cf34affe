"""What the soak's suites hand to its table: nothing that failed, ended early or was never run may look well."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.crashes import Rig
from tests.cluster.watcher import Watcher
from tests.model import __main__ as model
from tests.model.cases import Case
from tests.soak import __main__ as soak
from tests.soak import report, work

PASSED = '<testsuite><testcase classname="a" name="test_b" time="1"/></testsuite>'


@pytest.mark.parametrize(("status", "written", "well"), [(0, PASSED, True), (2, PASSED, False), (0, "", False)])
def test_a_pytest_that_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, written: str, well: bool
) -> None:
    seen: list[dict[str, str]] = []

    def run(command: Sequence[str], env: dict[str, str], check: bool) -> "subprocess.CompletedProcess[str]":
        seen.append(env)
        if written:
            (tmp_path / "out.xml").write_text(written)
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(subprocess, "run", run)
    found = soak.CLAIMS.run("claims", "any", tmp_path / "out.xml", {"GPUCLAIM_SOAK": "1"})
    assert report.is_well([found]) is well
    assert seen == [{**os.environ, "GPUCLAIM_SOAK": "1"}]


def outcome(name: str, **rest: str) -> model.Outcome:
    return model.Outcome(Case(name, {}, rest.pop("story", "")), 1000, 2.0, **rest)


@pytest.mark.parametrize(
    ("outcomes", "well"),
    [
        ([outcome("all on"), outcome("R_X", story="1: twice", violated="never twice")], True),
        ([outcome("all on", violated="never twice")], False),
        ([outcome("all on", trouble="out of memory")], False),
        ([outcome("R_X", story="1: twice")], False),
        ([], False),
    ],
)
def test_the_model(monkeypatch: pytest.MonkeyPatch, outcomes: list[model.Outcome], well: bool) -> None:
    asked: list[Any] = []

    def checked(cases: Sequence[Case], memory_mb: int, jobs: int) -> Iterator[model.Outcome]:
        asked.append((cases, memory_mb * jobs <= 20_000))
        yield from outcomes

    monkeypatch.setattr(model, "outcomes", checked)
    monkeypatch.setattr(model, "missing_tools", lambda: "")
    assert report.is_well([soak.check_model()]) is well
    assert asked == [(model.within("large"), True)]


def test_without_the_model_checker_it_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "missing_tools", lambda: "checking the model needs spin")
    assert not report.is_well([soak.check_model()])


class Pods:
    """kubectl, as far as it lists pods; ``ready`` by name."""

    def __init__(self, **ready: bool) -> None:
        self._ready = ready

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        succeeded = "status.phase=Succeeded" in arguments
        return [_pod(name, ready) for name, ready in self._ready.items() if ready or not succeeded]


def _pod(name: str, ready: bool) -> dict[str, Any]:
    status = "True" if ready else "False"
    return {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}}


class FakeWorld:
    namespace = "case"

    def __init__(self, kubectl: Pods) -> None:
        self.kubectl = kubectl


class NoFailures:
    def collect(self) -> None:
        """There are none."""


def test_who_has_not_run_in_time_is_lost() -> None:
    world: Any = FakeWorld(Pods(first=True, second=False))
    failures: Any = NoFailures()
    assert work.wait_done(world, ["first", "second", "third"], failures, seconds=0) == {"second", "third"}
    assert work.wait_done(world, ["first"], failures, seconds=60) == set()


def rig(**ready: bool) -> Rig:
    world: Any = FakeWorld(Pods(**ready))
    nothing: Any = None
    return Rig(world=world, node=nothing, agent=nothing, spare=nothing, rng=nothing, watcher=Watcher())


def test_a_crash_case_counts_what_it_saw() -> None:
    rigged = rig(first=True, second=False)
    rigged.subject, rigged.second, rigged.faults = "first", "second", ["intents", "waiting"]
    rigged.watcher.doubles += ["p1 and p2"]
    rigged.count()
    assert rigged.figures == {"double_holds": 1, "lost_claims": 1, "leftovers": 2}
    rigged.subject, rigged.second, rigged.faults = "first", "", []
    rigged.count()
    assert rigged.figures == {"double_holds": 0, "lost_claims": 0, "leftovers": 0}
    rigged.subject, rigged.faults = "gone", None
    rigged.count()
    assert rigged.figures == {"double_holds": 0, "lost_claims": 1}, "nobody has looked for leftovers"
