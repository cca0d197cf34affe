"""Beside another device plugin that hands out our GPUs: what it has given to a pod is offered to no claim."""

import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.harness.neighbours import GPU_RESOURCE
from tests.cluster.objects import IMAGE, Json
from tests.cluster.world import World

GPU = 5


@pytest.fixture(scope="module")
def plugin(shared_agent: Agent) -> Iterator[str]:
    """The UUID of the one GPU that it has. One for all cases: the node still shows the devices of one that has ended,
    and a pod of that moment fails for good."""
    node, uuid = shared_agent.node, shared_agent.gpus().state().gpus[GPU].uuid
    environment = {"HOME": "/root", "PATH": f"{node.layout.binaries}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "tests.cluster.harness.neighbours", "gpus"]
    node.supervisor.start("gpus", [*command, str(node.layout.admin_kubeconfig), node.name, uuid], environment)
    kubectl = node.kubectl()

    def allocatable() -> object:
        return kubectl.json("get", "node", node.name)["status"]["allocatable"].get(GPU_RESOURCE)

    kubectl.wait("the other plugin's capacity", lambda: allocatable() == "1")
    yield uuid
    node.supervisor.stop("gpus")


def old_pod(name: str, *, init: bool = False) -> Json:
    limits = {"limits": {GPU_RESOURCE: "1"}}
    script = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
    user = {"name": "c", "image": IMAGE, "command": ["sh", "-c", script], "resources": limits}
    containers = {"initContainers": [user], "containers": [{**user, "name": "later", "resources": {}}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            **(containers if init else {"containers": [user]}),
        },
    }


def offered(world: World) -> bool:
    return f"gpu-{GPU}" in world.devices()


def node_notes(world: World, reason: str) -> list[str]:
    events = world.kubectl.items("events", "-n", "default", "--field-selector", f"reason={reason}")
    return [event["message"] for event in events]


def test_a_gpu_that_it_has_given_out_leaves_and_comes_back(world: World, plugin: str) -> None:
    assert offered(world)
    world.create(old_pod("old"))
    world.kubectl.wait("the GPU isn't offered", lambda: not offered(world), seconds=20)
    world.running("old")
    # Told after a look at the kubelet's list, which has the pod's name.
    told = f"pod {world.namespace}/old has it as {GPU_RESOURCE}"
    world.kubectl.wait("it is told", lambda: any(told in note for note in node_notes(world, "DeviceTaken")), seconds=40)
    # The kubelet's checkpoint keeps the pod, and its list doesn't.
    world.delete("pod/old")
    world.kubectl.wait("the GPU is offered again", lambda: offered(world), seconds=60)


def test_one_that_an_init_container_has_is_not_offered(world: World, plugin: str) -> None:
    """The kubelet's list of pods leaves it out."""
    world.create(old_pod("early", init=True))
    world.kubectl.wait("the GPU isn't offered", lambda: not offered(world), seconds=20)
    # Long enough for looks that doubted it.
    time.sleep(8)
    assert not offered(world)
    world.delete("pod/early", force=True)
    world.kubectl.wait("the GPU is offered again", lambda: offered(world), seconds=60)
