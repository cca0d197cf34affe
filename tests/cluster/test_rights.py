"""The admission policy bites: an agent writes slices of its own node and driver, nothing else."""

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.harness.kubectl import Kubectl, KubectlError

NODE = "node-1"


def slice_of(node: str | None, driver: str = "gpu.nvidia.com") -> dict[str, object]:
    where: dict[str, object] = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": "policy-test", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "policy-test-"},
        "spec": {"driver": driver, "pool": pool, **where},
    }


@pytest.fixture
def as_agent(agent: Agent) -> Kubectl:
    return agent.node.kubectl(agent.node.layout.config / f"{agent.name}.conf")


@pytest.mark.parametrize(
    ("piece", "refusal"),
    [
        (slice_of("node-2"), "the agent of node node-1 may not write a ResourceSlice of node node-2"),
        (slice_of(None), "may not write a ResourceSlice of node (none)"),
        (slice_of(NODE, "dra.example.com"), "may not write a ResourceSlice of driver dra.example.com"),
    ],
    ids=["another node's", "all nodes'", "another driver's"],
)
def test_a_foreign_slice_is_refused(as_agent: Kubectl, piece: dict[str, object], refusal: str) -> None:
    with pytest.raises(KubectlError) as refused:
        as_agent.create(piece)
    assert refusal in str(refused.value)


def test_its_own_slice_is_allowed(as_agent: Kubectl) -> None:
    as_agent.run("create", "--dry-run=server", "-f", "-", stdin=__import__("yaml").safe_dump(slice_of(NODE)))


@pytest.mark.parametrize(
    "words",
    ["get secrets -A", "get pods -A", "delete node node-1", "create deviceclass", "patch resourceclaims -A"],
)
def test_it_may_do_nothing_else(as_agent: Kubectl, words: str) -> None:
    verb, resource, *rest = words.split()
    with pytest.raises(KubectlError):
        as_agent.run("auth", "can-i", verb, resource, *rest)
