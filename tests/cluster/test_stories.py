"""The protocol's stories (docs/protocol) that can be forced on a real node: claims that an administrator moves under
one UID, with pods that live on, a kubelet restart in between, and a pod that joins while its claim is let go.

Stories 1 and 4, forced deletes whose processes outlive SIGTERM, are in test_faults; 8 to 10 with the crash points and
the upgrades. What each asks is the same: no GPU with two, and nobody stuck without being told.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import Json, claim, pod, template
from tests.cluster.test_faults import for_gpu
from tests.cluster.world import World

pytestmark = pytest.mark.soak


def move(world: World, name: str, device: str) -> None:
    """Deallocates the claim and allocates it the device, under the same UID, as nobody but an administrator does; then
    it is reserved for no pod."""
    where = ("resourceclaim", name, "-n", world.namespace)
    allocation: Json = world.kubectl.json("get", *where)["status"]["allocation"]
    allocation["devices"]["results"][0]["device"] = device
    for status in (None, {"allocation": allocation}):
        patch = json.dumps({"status": status})
        world.kubectl.run("patch", *where, "--subresource=status", "--type=merge", "-p", patch)


def placed(world: World, name: str, claim_name: str, node: str) -> Json:
    """A pod that no scheduler has a say in: the claim is reserved for it as it is."""
    made = pod(name, claim_name=claim_name)
    made["spec"]["nodeName"] = node
    return made


def on_gpu_0(world: World) -> str:
    """A named claim, allocated gpu-0, and its pod running; returns the pod's GPU node."""
    world.create(claim("named", for_gpu(world, "gpu-0")), pod("first", claim_name="named"))
    world.running("first")
    (node,) = world.gpu_nodes("first")
    return node


@contextmanager
def stopped(agent: Agent) -> Iterator[None]:
    assert agent.pid is not None
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent.pid, signal.SIGCONT)


def test_3_and_11_a_claim_moves_while_its_pod_runs_and_the_kubelet_restarts(agent: Agent, world: World) -> None:
    """The kubelet asks for the new devices and keeps the old id beside the new one. The old GPU is nobody's until the
    old pod has gone."""
    old = on_gpu_0(world)
    move(world, "named", "gpu-1")
    agent.node.restart_kubelet()
    agent.wait_ready()
    world.create(placed(world, "second", "named", agent.node.name))
    world.running("second", seconds=60)
    assert world.gpu_nodes("second") not in ({old}, set())
    assert world.gpu_nodes("first") == {old}

    world.create(template("gpu-0", for_gpu(world, "gpu-0")), pod("other", template_name="gpu-0"))
    world.kubectl.wait("the old GPU's next pod waits", lambda: '"other-gpu-' in agent.status(), seconds=20)
    time.sleep(2)
    assert world.pending("other")
    world.delete("pod/first")
    world.running("other", seconds=20)
    assert world.gpu_nodes("other") == {old}


def test_the_kubelets_fault_a_claim_moves_while_it_believes_it_prepared(agent: Agent, world: World) -> None:
    """It starts the next pod with the old devices and without a call: one GPU, one claim, and an Event."""
    old = on_gpu_0(world)
    move(world, "named", "gpu-1")
    world.create(placed(world, "second", "named", agent.node.name))
    world.running("second", seconds=60)
    assert world.gpu_nodes("second") == {old}
    world.create(template("gpu-0", for_gpu(world, "gpu-0")), pod("other", template_name="gpu-0"))

    def told() -> bool:
        return any("ClaimMoved" in event and "delete this pod" in event for event in world.events("second"))

    world.kubectl.wait("an Event on the pod says what to do", told, seconds=45)
    assert world.pending("other")
    world.delete("pod/first", "pod/second")
    world.running("other", seconds=20)
    assert world.gpu_nodes("other") == {old}


def test_the_kubelets_fault_a_pod_joins_while_its_claim_is_let_go(agent: Agent, world: World) -> None:
    """The kubelet forgets the claim at Unprepare's answer, with the pod that has joined meanwhile."""
    old = on_gpu_0(world)
    with stopped(agent):
        world.delete("pod/first", wait=False)
        time.sleep(4)
        world.create(placed(world, "joins", "named", agent.node.name))
        world.running("joins", seconds=30)
    world.kubectl.wait("the first pod is gone", lambda: world.kubectl.phase(world.namespace, "first") == "(gone)", 30)
    assert world.gpu_nodes("joins") == {old}

    def told() -> bool:
        return any("ClaimForgotten" in event and "delete this pod" in event for event in world.events("joins"))

    world.kubectl.wait("an Event on the pod says what to do", told, seconds=60)
    world.delete("pod/joins", "resourceclaim/named")
    world.create(template("gpu-0", for_gpu(world, "gpu-0")), pod("other", template_name="gpu-0"))
    world.running("other", seconds=30)
    assert world.gpu_nodes("other") == {old}
