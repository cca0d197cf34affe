"""The kubelet upgraded in place, from the oldest release that we serve to the newest, under held claims.

The API server is of the newest, which serves kubelets of up to three minor releases before it.
"""

import pytest

from tests.cluster.harness import binaries
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.node import KUBELET_ROOT, RealNode
from tests.cluster.objects import claim, pod, template
from tests.cluster.world import World
from tests.soak.conftest import Tell

NEWEST = binaries.releases()[-1]


@pytest.mark.skipif(binaries.selected_release() != NEWEST, reason=f"needs the API server of {NEWEST}")
def test_claims_are_held_through_it(agent: Agent, world: World, tell: Tell) -> None:
    node, (oldest, *newer) = agent.node, binaries.releases()
    swap_kubelet(node, oldest, anew=True)
    agent.wait_ready()
    world.create(template("one"), claim("shared"))
    world.create(pod("alone", template_name="one"), pod("first", claim_name="shared"))
    world.running("alone", "first")
    held = {name: world.gpu_nodes(name) for name in ("alone", "first")}
    for release in newer:
        name = release.replace(".", "-")
        swap_kubelet(node, release)
        agent.wait_ready()
        world.create(pod(f"joined-{name}", claim_name="shared"), pod(f"new-{name}", template_name="one"))
        world.running(f"joined-{name}", f"new-{name}", seconds=90)
        assert world.gpu_nodes(f"joined-{name}") == held["first"]
        assert world.gpu_nodes(f"new-{name}").isdisjoint(held["first"] | held["alone"])
        assert {name: world.gpu_nodes(name) for name in held} == held
        assert [world.restarts(name) for name in held] == [0, 0]
        world.delete(f"pod/new-{name}")
    world.exec("alone", "sh", "-c", "(sleep 0.3; kill 1) >/dev/null 2>&1 &")
    world.kubectl.wait("the container restarted", lambda: world.restarts("alone") == 1, seconds=20)
    world.running("alone")
    assert world.gpu_nodes("alone") == held["alone"]
    tell(kubelets=" ".join((oldest, *newer)), pods=2 + 2 * len(newer))


def swap_kubelet(node: RealNode, release: str, *, anew: bool = False) -> None:
    """``anew``: without what the one before has written down, since no kubelet reads a newer one's files."""
    node.supervisor.stop("kubelet")
    if anew:
        for state in KUBELET_ROOT.glob("*_state"):
            state.unlink()
    node.kubelet = binaries.ensure_binaries(release) / "kubelet"
    node.start_kubelet()
    kubectl = node.kubectl()

    def runs() -> bool:
        found = kubectl.json("get", "node", node.name)
        ready = [each["status"] for each in found["status"]["conditions"] if each["type"] == "Ready"]
        return bool(found["status"]["nodeInfo"]["kubeletVersion"] == f"v{release}" and ready == ["True"])

    kubectl.wait(f"the node with kubelet {release}", runs, 60)
