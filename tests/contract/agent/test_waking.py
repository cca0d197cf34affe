"""The agent wakes pods of which the kubelet would try to prepare the claims only at its next resync.

Each case ends in seconds; without a touch it would end with the kubelet's 60.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuclaim.demo.kubelet import PodClaim
from gpuclaim.demo.kubelet_pods import FakePods
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import PODS, RESOURCE_CLAIMS, Json
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeletplugin.app.waking.rules import GRACE_SECONDS
from kubeletplugin.clock import SystemClock
from tests.contract.agent.node import AgentNode, until_true

pytestmark = pytest.mark.anyio

WAKES = "gpu.nvidia.com/wakes"


class Workload:
    """Pods on the node, each with one claim, and the kubelet's workers for them."""

    def __init__(self, node: AgentNode, kubelet: FakePods) -> None:
        self.node = node
        self.kubelet = kubelet

    def claim(self, name: str, *devices: str) -> PodClaim:
        """Allocated, and reserved for the pods that ``bind`` will bring."""
        return self.node.allocate(name, *devices, pod=f"uid-{name}")

    def bind(self, name: str, claim: str = "") -> None:
        uid = f"uid-{name}"
        body = self.node.server.object(RESOURCE_CLAIMS, claim or name, "default")
        consumers = body["status"]["reservedFor"]
        if uid not in {consumer["uid"] for consumer in consumers}:
            consumers.append({"resource": "pods", "name": name, "uid": uid})
            self.node.server.put(RESOURCE_CLAIMS, body)
        spec = {"nodeName": NODE_NAME, "resourceClaims": [{"name": "gpu", "resourceClaimName": claim or name}]}
        metadata = {"name": name, "namespace": "default", "uid": uid}
        self.node.server.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})

    def pod(self, name: str) -> Json:
        return self.node.server.object(PODS, name, "default")

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])

    def wakes(self, name: str) -> str:
        return str(self.pod(name)["metadata"].get("annotations", {}).get(WAKES, ""))

    async def runs(self, name: str) -> None:
        await until_true(lambda: self.phase(name) == "Running")

    async def fails(self, name: str, text: str) -> None:
        await until_true(lambda: any(text in failure for failure in self.kubelet.failures.get(name, [])))


@pytest.fixture
async def workload(node: AgentNode) -> AsyncIterator[Workload]:
    async with RestKubeApi(FixedConnection(Connection(node.server.url))) as api:
        pods = FakePods(node.kubelet, api, NODE_NAME, SystemClock())
        task = asyncio.create_task(pods.run())
        yield Workload(node, pods)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def start(node: AgentNode, **settings: Any) -> None:
    node.start_agent(rescan_interval=0.1, **settings)
    await node.ready()


async def test_a_pod_whose_claim_the_kubelet_could_not_read(node: AgentNode, workload: Workload) -> None:
    await start(node)
    workload.claim("train", "gpu-1")
    workload.kubelet.refuse_reads["train"] = 1
    workload.bind("train")
    await workload.fails("train", "no relationship found")
    await workload.runs("train")
    assert workload.wakes("train") == "1"
    assert len(workload.kubelet.failures["train"]) == 1


async def test_a_second_pod_of_a_prepared_claim(node: AgentNode, workload: Workload) -> None:
    await start(node)
    workload.claim("train", "gpu-1")
    workload.bind("train")
    await workload.runs("train")
    workload.kubelet.refuse_reads["train"] = 1
    workload.bind("second", "train")
    await workload.runs("second")
    assert (workload.wakes("train"), workload.wakes("second")) == ("", "1")


async def test_a_refusal_whose_reason_goes(node: AgentNode, workload: Workload) -> None:
    """Both claims are allocated the same GPU, which a scheduler never does; so it can't clear up within the call."""
    await start(node)
    workload.claim("first", "gpu-1")
    workload.bind("first")
    await workload.runs("first")
    workload.claim("second", "gpu-1")
    workload.bind("second")
    await workload.fails("second", "held by claim first")
    assert workload.wakes("second") == ""
    node.server.remove(PODS, "first", "default")
    await workload.runs("second")
    assert workload.wakes("second") == "1"


async def test_a_pod_that_was_refused_while_no_agent_served(node: AgentNode, workload: Workload) -> None:
    workload.claim("train", "gpu-1")
    workload.bind("train")
    await workload.fails("train", "not registered")
    await start(node)
    await workload.runs("train")
    assert workload.wakes("train") == "1"


async def test_switched_off_nobody_is_touched(node: AgentNode, workload: Workload) -> None:
    await start(node, wake_pods=False)
    workload.claim("first", "gpu-1")
    workload.bind("first")
    await workload.runs("first")
    workload.claim("second", "gpu-1")
    workload.bind("second")
    await workload.fails("second", "held by claim first")
    node.server.remove(PODS, "first", "default")
    await until_true(lambda: not node.claim_files())
    await asyncio.sleep(0.05)
    assert ("apply", "pods") not in node.server.requests and workload.phase("second") == "Pending"
    # Anything else that changes has the same effect.
    metadata = {"name": "second", "namespace": "default", "labels": {"a": "b"}}
    node.server.put(PODS, {**workload.pod("second"), "metadata": metadata})
    await workload.runs("second")


async def test_pods_that_wait_for_their_image_cost_no_read(node: AgentNode) -> None:
    """Their claims have reached the kubelet, and this node knows it."""
    await start(node)
    for number in range(3):
        name, uid = f"pull-{number}", f"uid-pull-{number}"
        claim = node.allocate(name, f"gpu-{number}", pod=uid)
        spec = {"nodeName": NODE_NAME, "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        metadata = {"name": name, "namespace": "default", "uid": uid}
        node.server.put(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        await node.prepare(uid, claim)
    before = node.server.requests["get", "resourceclaims"]
    await asyncio.sleep(GRACE_SECONDS + 1)
    assert node.server.requests["get", "resourceclaims"] == before
