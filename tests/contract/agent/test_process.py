"""The agent as a process of its own, ended as a supervisor and as the kernel would."""

import asyncio
import json
import signal

import pytest
from typer.testing import CliRunner

from deviceclasses.names import DRIVER_NAME
from gpuclaim.cli.commands import app
from tests.contract.agent.node import AgentNode, until_true

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_the_next_process_answers_as_the_last_one_did(node: AgentNode, number: signal.Signals) -> None:
    first = await node.start_process("first")
    await node.ready()
    claim = node.allocate("train", "gpu-5", pod="pod-1")
    ids = await node.prepare("pod-1", claim)
    slices, files = node.slices(), node.claim_files()
    code = await first.end(number)
    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL), first.output
    assert (node.slices(), node.claim_files()) == (slices, files)
    assert (node.sockets() == []) == (number is signal.SIGTERM)
    second = await node.start_process("second")
    await until_true(lambda: "registered: True, active" in second.output)
    await node.kubelet.restart()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    assert await node.prepare("pod-1", claim) == ids
    assert node.claim_files() == files
    await node.kubelet.unprepare("pod-1", [claim])
    assert await node.holders("gpu-5") == []
    assert await second.end(signal.SIGTERM) == 0, second.output
    assert "Traceback" not in first.output + second.output


async def test_status_through_the_socket_and_from_the_file(node: AgentNode) -> None:
    agent = node.start_agent()
    await node.ready()
    claim = node.allocate("train", "gpu-5", pod="pod-1")
    await node.prepare("pod-1", claim)
    live = await status_command(node)
    assert (live["state"], live["ready"]) == ("active", True)
    await agent.stop()
    kept = await status_command(node)
    assert kept["state"] == "no agent runs; from the ledger's file"
    assert held(live) == held(kept) == {"gpu-5": ["train"]}


async def status_command(node: AgentNode) -> dict[str, object]:
    words = ["status", "--kubelet-root-dir", str(node.settings.kubelet_root_dir), "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 0, result.output
    answer: dict[str, object] = json.loads(result.output)
    return answer


def held(status: dict[str, object]) -> dict[str, list[str]]:
    devices = status["devices"]
    assert isinstance(devices, list)
    return {entry["name"]: [it["name"] for it in entry["holders"]] for entry in devices if entry["holders"]}
