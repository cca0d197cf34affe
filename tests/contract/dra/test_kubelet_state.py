"""What the fake kubelet remembers, read back the way the agent reads a real one's file."""

import asyncio

import pytest

from gpuclaim.demo.kubelet import PodClaim, PodError
from kubeletplugin.prepare.kubelet_state import KubeletStateFile
from kubeletplugin.prepare.model import PrepareResult
from tests.contract.dra.support import DRIVER, Node, claim, until

pytestmark = pytest.mark.anyio


async def test_a_claim_is_listed_before_it_is_prepared_and_until_it_is_unprepared(node: Node) -> None:
    file = KubeletStateFile(node.root)
    agent = await node.start("a")
    agent.handler.gate.clear()
    call = asyncio.create_task(node.kubelet.prepare("pod-1", [claim(1)]))
    await agent.handler.called.wait()
    assert file.read().pods("uid-1") == {"pod-1"}
    assert file.read().cdi_names("uid-1") == ()
    agent.handler.gate.set()
    await call
    assert file.read().cdi_names("uid-1") == ("uid-1-gpu-0",)
    agent.handler.gate.clear()
    agent.handler.called.clear()
    undo = asyncio.create_task(node.kubelet.unprepare("pod-1", [claim(1)]))
    await agent.handler.called.wait()
    assert file.read().lists("uid-1")
    agent.handler.gate.set()
    await undo
    assert not file.read().lists("uid-1")
    assert file.read().unreadable == ""


async def test_only_the_last_pod_of_a_claim_has_it_unprepared(node: Node) -> None:
    agent = await node.start("a")
    for pod in ("pod-1", "pod-2"):
        await node.kubelet.prepare(pod, [claim(1)])
    await node.kubelet.unprepare("pod-1", [claim(1)])
    assert agent.handler.unprepared == []
    await node.kubelet.unprepare("pod-2", [claim(1)])
    assert agent.handler.unprepared == ["uid-1"]


async def test_a_claim_whose_prepare_failed_stays_listed(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.answer = lambda claims: {ref.uid: PrepareResult(error="no") for ref in claims}
    with pytest.raises(PodError):
        await node.kubelet.prepare("pod-1", [claim(1)])
    assert KubeletStateFile(node.root).read().lists("uid-1")


async def test_a_restarted_kubelet_knows_the_ids_and_appends_what_comes_back(node: Node) -> None:
    agent = await node.start("a")
    await node.kubelet.prepare("pod-1", [claim(1)])
    await node.kubelet.restart()
    await until(lambda: node.connected(agent))
    ids = await node.kubelet.prepare("pod-2", [claim(1)])
    assert ids["uid-1"] == ["k8s.gpu.nvidia.com/claim=uid-1-gpu-0"] * 2


async def test_a_claim_of_the_same_name_waits_for_the_old_ones_end(node: Node) -> None:
    await node.start("a")
    await node.kubelet.prepare("pod-1", [claim(1)])
    again = PodClaim("uid-new", "default", "claim-1", (DRIVER,))
    with pytest.raises(PodError, match="different UID uid-1 still exists"):
        await node.kubelet.prepare("pod-2", [again])


async def test_an_unregistered_driver_is_named(node: Node) -> None:
    with pytest.raises(PodError, match=r"DRA driver nic\.example\.com is not registered"):
        await node.kubelet.prepare("pod-1", [claim(1, "nic.example.com")])
    assert not KubeletStateFile(node.root).read().lists("uid-1")
