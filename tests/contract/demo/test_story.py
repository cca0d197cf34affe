"""The whole story on every kind of machine, and each way in which it ends early: one line and exit status 1."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.demo import story
from gpuclaim.demo.cdi_files import CdiFiles
from gpuclaim.demo.stage import Stage
from kubeletplugin.app.agent import Agent
from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.simulated import machine_names

pytestmark = pytest.mark.anyio

HAPPY_END = "Everything was as it should be."


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the story makes its own folder, so that a test sees what is left of it."""
    with tempfile.TemporaryDirectory(prefix="demo") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("machine", machine_names())
async def test_every_machine(machine: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await story.run(machine) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == HAPPY_END
    assert told.err == ""
    assert left_in(folder) == []


async def test_what_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert await story.run("dgx-h100") == 0
    told = " ".join(capsys.readouterr().out.split())
    for words in (
        "Simulated here: GPUs, kubelet, scheduler, API server",
        "Real: the node agent with its gRPC sockets",
        "8 x NVIDIA H100 80GB HBM3",
        'memory.compareTo(quantity("64Gi")) >= 0',
        "allocates gpu-0, the first of 8 that fit",
        "allocates gpu-1, the first of 7 that fit",
        '"path": "/dev/nvidia0"',
        "status.devices of train-gpu",
        "failed for ResourceClaim rival-gpu: gpu-0 is held by claim train-gpu, which is allocated the same device",
        "draining 1 process of its former pods still running",
        "its ResourceSlices stay for the next one",
    ):
        assert words in told


async def test_with_one_gpu_the_second_claim_waits_for_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert await story.run("l4x1") == 0
    told = " ".join(capsys.readouterr().out.split())
    pending = told.index("0 of 1 devices usable (1: in use by claim demo/train-gpu)")
    free = told.index("the process has ended, gpu-0 is free")
    assert pending < free < told.index("9. One claim, shared by two pods The scheduler's stand-in allocates gpu-0")


async def test_with_partitions_the_claims_are_for_those(capsys: pytest.CaptureFixture[str]) -> None:
    assert await story.run("dgx-h100", ["0=1g.10gb,3g.40gb"]) == 0
    told = capsys.readouterr().out
    assert "stand-in allocates gpu-0-mig-3g40gb-" in told
    assert "/dev/nvidia-caps/" in told


async def test_a_proxy_is_not_asked_for_this_machines_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert await story.run("l4x1") == 0


@pytest.mark.parametrize(
    ("machine", "mig", "words"),
    [
        ("dgx-h10", [], "gpuclaim demo: find machine 'dgx-h10': no such profile (did you mean dgx-h100?)"),
        ("nowhere/machine.yaml", [], "gpuclaim demo: read machine profile nowhere/machine.yaml: no such file"),
        ("dgx-h100", ["0=9g.80gb"], "gpuclaim demo: lay out GPU 0: no MIG profile '9g.80gb' (did you mean"),
        ("l4x1", ["0=1g.10gb"], "gpuclaim demo: lay out GPU 0: NVIDIA L4 can't do MIG"),
    ],
)
async def test_a_wrong_word_is_one_line(
    machine: str, mig: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await story.run(machine, mig) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(words)
    assert left_in(folder) == []


async def test_without_cel_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    monkeypatch.delitem(sys.modules, "allocator.cel", raising=False)
    assert await story.run("dgx-h100") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'gpuclaim[cel]'" in line


async def test_a_wrong_step_ends_it_and_keeps_the_agents_log(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CdiFiles, "gpu_nodes", lambda self, uid: {"/dev/nvidia0", "/dev/nvidia1"})
    assert await story.run("dgx-h100") == 1
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    (kept,) = left_in(folder)
    assert line == (
        "gpuclaim demo: wrong: the claim gives /dev/nvidia0 and no other GPU's node;"
        f" the agent's log and files are in {kept}"
    )
    assert HAPPY_END not in told.out
    assert "registered with the kubelet" in (kept / "agent.log").read_text()


async def test_an_agent_that_ends_ends_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(agent: Agent) -> None:
        raise FatalError("bind the DRA socket: is the folder writable?")

    monkeypatch.setattr(Agent, "run", run)
    assert await story.run("dgx-h100") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "wrong: the agent ended: bind the DRA socket: is the folder writable?; the agent's log" in line


async def test_an_agent_that_is_never_ready_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def status(stage: Stage) -> dict[str, Any]:
        return {"ready": "the kubelet hasn't registered this instance yet"}

    monkeypatch.setattr(Stage, "status", status)
    monkeypatch.setattr("gpuclaim.demo.stage.READY_SECONDS", 0.1)
    assert await story.run("l4x1") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the agent isn't ready after 0.1 s: the kubelet hasn't registered this instance yet" in line
