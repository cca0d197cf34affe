"""`gpuclaim release` against the running agent."""

import asyncio
import json
import os
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuclaim.cli.commands import app
from gpuclaim.demo.kubelet import PodClaim
from kubeapi.client import EVENTS
from tests.contract.agent.node import AgentNode, until_true

pytestmark = pytest.mark.anyio


async def command(node: AgentNode, *words: str, answer: str = "") -> Any:
    arguments = ["release", *words, "--kubelet-root-dir", str(node.settings.kubelet_root_dir)]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, input=answer)


async def state(node: AgentNode, device: str) -> str:
    devices = (await node.status())["devices"]
    return str(next(entry["state"] for entry in devices if entry["name"] == device))


@pytest.fixture
async def claim(node: AgentNode) -> PodClaim:
    """Unprepared, and its pod's process doesn't end."""
    node.start_agent()
    await node.ready()
    pod = "7bb2a1b4-0f3e-4a36-8c09-5d0d0c0b6a11"
    claim = node.allocate("train", "gpu-3", pod=pod)
    await node.prepare(pod, claim)
    node.pods.run(pod, 4711)
    await node.kubelet.unprepare(pod, [claim])
    assert await state(node, "gpu-3") == "draining"
    return claim


async def test_it_shows_what_is_left_and_gives_the_device_free(node: AgentNode, claim: PodClaim) -> None:
    result = await command(node, "gpu-3", "--yes")
    assert result.exit_code == 0, result.output
    for words in ("last held by default/train", "pid 4711", "beside the new holder", "released gpu-3"):
        assert words in result.output
    assert await state(node, "gpu-3") == "free"

    def events() -> list[Any]:
        return [event for event in node.server.objects(EVENTS) if event["reason"] == "DeviceReleased"]

    await until_true(events)
    (event,) = events()
    assert event["regarding"]["kind"] == "Node"
    assert f"device gpu-3 was released by hand (uid {os.getuid()}" in event["note"]
    assert "pid 4711" in event["note"]


async def test_programs_read_json(node: AgentNode, claim: PodClaim) -> None:
    result = await command(node, "gpu-3", "--yes", "-o", "json")
    answer = json.loads(result.output)
    assert (answer["device"], answer["drains"][0]["holder"]["name"]) == ("gpu-3", "train")
    assert answer["drains"][0]["pods"][0]["pids"] == [4711]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["gpu-3"], 2, "release without asking a person: give --yes"),
        (["gpu-1", "--yes"], 1, "release gpu-1: it is free, there is nothing to release"),
        (["gpu-33", "--yes"], 2, "release gpu-33: there is no such device on this node (did you mean gpu-3"),
    ],
)
async def test_refusals(node: AgentNode, claim: PodClaim, words: list[str], status: int, message: str) -> None:
    result = await command(node, *words)
    assert result.exit_code == status
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"gpuclaim: {message}")
    assert await state(node, "gpu-3") == "draining"


@pytest.mark.parametrize(("answer", "status", "after"), [("y", 0, "free"), ("n", 1, "draining")])
async def test_a_person_is_asked(
    node: AgentNode, claim: PodClaim, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, after: str
) -> None:
    monkeypatch.setattr("gpuclaim.cli.output.can_ask", lambda: True)
    result = await command(node, "gpu-3", answer=answer)
    assert result.exit_code == status
    assert "Release gpu-3? [y/N]" in result.output
    assert await state(node, "gpu-3") == after


async def test_without_an_agent_there_is_nobody_to_do_it(node: AgentNode) -> None:
    result = await command(node, "gpu-3", "--yes")
    assert result.exit_code == 1
    assert "no agent runs here (looked in" in result.stderr
