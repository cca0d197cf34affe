"""What heals is waited for, with one line that says what, where and what to do; what can't ends the agent with one."""

import asyncio
import logging
import os

import pytest

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.errors import FatalError
from kubeletplugin.prepare.manager import ClaimManager
from kubeletplugin.slices.controller import SliceController
from tests.contract.agent.node import AgentNode, HurriedClock, until, until_true

pytestmark = pytest.mark.anyio


def warnings(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in found if line.startswith(start)]


async def test_no_kubelet_folder_is_waited_for(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    root = node.folder / "elsewhere"
    agent = node.start_agent(HurriedClock(), kubelet_root_dir=root)
    await until_true(lambda: warnings(caplog, "wait for the kubelet"))
    assert not agent.task.done()
    (root / "plugins_registry").mkdir(parents=True)
    await until_true(lambda: len(list(root.rglob("*.sock"))) == 3)
    (line,) = warnings(caplog, "wait for the kubelet")
    assert f"{root}/plugins_registry" in line
    assert "--kubelet-root-dir" in line


async def test_a_stop_ends_the_wait_for_the_kubelet(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    agent = node.start_agent(kubelet_root_dir=node.folder / "elsewhere")
    await until_true(lambda: warnings(caplog, "wait for the kubelet"))
    await agent.stop()


async def test_an_api_server_that_is_away_is_tried_again(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    await node.server.stop()
    node.start_agent()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    await until_true(lambda: warnings(caplog, "list and watch resourceslices"))
    (line,) = warnings(caplog, "try the node's slices")
    assert f"reach API server {node.server.url}: connection refused" in line
    assert (await node.status())["ready"] == "the API server doesn't hold the node's slices yet"
    await node.server.start()
    await node.ready()
    assert len(node.devices()) == 8


async def test_missing_rights_are_named(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    refusal = 'resourceslices.resource.k8s.io is forbidden: User "system:serviceaccount:gpuclaim:agent" cannot'
    fault = node.server.faults.fail(403, times=1_000_000, resource="resourceslices", message=refusal)
    node.start_agent()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    await until_true(lambda: warnings(caplog, "list and watch resourceslices"))
    (line,) = warnings(caplog, "try the node's slices")
    assert refusal in line
    assert "deploy/manifests" in line
    assert fault.times > 0
    node.server.faults.release()
    await node.ready()


async def test_claims_are_served_while_slices_are_forbidden(node: AgentNode) -> None:
    node.server.faults.fail(403, times=1_000_000, resource="resourceslices")
    node.start_agent()

    async def active() -> bool:
        return bool(node.sockets()) and (await node.status())["state"] == "active"

    await until(active)
    claim = node.allocate("train", "gpu-0", pod="pod-1")
    assert (await node.prepare("pod-1", claim))[0] == node.claim_id(claim, "gpu-0")


async def test_a_driver_that_comes_late(node: AgentNode, caplog: pytest.LogCaptureFixture) -> None:
    """Claims must be unprepared on a node whose driver is broken, so the agent registers without GPUs."""
    machine = node.machine()
    machine.set_driver(loaded=False)
    node.start_agent(HurriedClock(), rescan_interval=0.1)
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    (line,) = warnings(caplog, "go on without GPUs")
    assert "driver" in line.lower()
    assert node.devices() == []
    machine.set_driver(loaded=True)
    await node.ready()
    assert len(node.devices()) == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"node_name": ""}, "name the node: give --node-name"),
        ({"machine": "dgx-h10"}, "no such profile .did you mean dgx-h100"),
        ({"kubeconfig": "/nowhere/kubeconfig"}, "read kubeconfig /nowhere/kubeconfig: no such file"),
    ],
)
async def test_what_cannot_heal_ends_the_agent(node: AgentNode, settings: dict[str, str], message: str) -> None:
    agent = node.start_agent(None, **settings)
    with pytest.raises(FatalError, match=message) as caught:
        await agent.task
    assert "\n" not in str(caught.value)
    assert node.sockets() == []


async def test_a_removed_socket_ends_the_agent(node: AgentNode) -> None:
    """The kubelet can't reach it any more and a server can't bind anew; its supervisor starts it again."""
    agent = node.start_agent(HurriedClock())
    await node.ready()
    (socket,) = [name for name in node.sockets() if name.startswith("dra-")]
    os.unlink(node.settings.plugin_dir / socket)
    with pytest.raises(FatalError, match="was removed by somebody else"):
        await agent.task


async def test_what_fails_while_giving_the_node_up_leaves_nothing_running(
    node: AgentNode, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no fence, slices and Events above all, must not go on beside the next holder."""
    agent = node.start_agent()
    await node.ready()

    async def fail(self: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr(SliceController, "stop", fail)
    monkeypatch.setattr(ClaimManager, "yield_", fail)
    before = asyncio.all_tasks()
    await agent.agent._active.deactivate()
    ended = {task.get_name() for task in before - asyncio.all_tasks()}
    assert {"sweep", "wake pods", "keep the ledger's file", "publish the inventory", "write claims' status"} <= ended
    assert await agent.agent._active.status() is None
    assert await agent.agent._active.view() is None
    assert len([line for line in caplog.messages if line.startswith("give the node up")]) == 2
