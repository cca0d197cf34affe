"""The admission policy bites: an agent writes slices of its own node, pool and driver, nothing else."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.harness.agent import Agent
from tests.cluster.harness.kubectl import Kubectl, KubectlError
from tests.cluster.world import World

NODE = "node-1"
OTHER = "node-2"


def slice_of(node: str | None, driver: str = "gpu.nvidia.com", pool_name: str = NODE) -> dict[str, object]:
    where: dict[str, object] = {"nodeName": node} if node else {"allNodes": True}
    pool = {"name": pool_name, "generation": 1, "resourceSliceCount": 1}
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
        (slice_of(OTHER), "the agent of node node-1 may not write a ResourceSlice of node node-2"),
        (slice_of(NODE, pool_name=OTHER), "the agent of node node-1 may not write a ResourceSlice of pool node-2"),
        (slice_of(None), "may not write a ResourceSlice of node (none)"),
        (slice_of(NODE, "dra.example.com"), "may not write a ResourceSlice of driver dra.example.com"),
    ],
    ids=["another node's", "another node's pool", "all nodes'", "another driver's"],
)
def test_a_foreign_slice_is_refused(as_agent: Kubectl, piece: dict[str, object], refusal: str) -> None:
    with pytest.raises(KubectlError) as refused:
        as_agent.create(piece)
    assert refusal in str(refused.value)


def test_its_own_slice_is_allowed(as_agent: Kubectl) -> None:
    as_agent.run("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(slice_of(NODE)))


FOREIGN = {
    "another node's": slice_of(OTHER, pool_name=OTHER),
    "another driver's": slice_of(NODE, "dra.example.com"),
}


@pytest.fixture(params=list(FOREIGN.values()), ids=list(FOREIGN))
def foreign(agent: Agent, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """A slice that is there already, made by an administrator."""
    admin = agent.node.kubectl()
    made: dict[str, Any] = json.loads(admin.run("create", "-f", "-", "-o", "json", stdin=yaml.safe_dump(request.param)))
    yield made
    admin.run("delete", "resourceslice", made["metadata"]["name"], "--ignore-not-found")


def test_a_foreign_slice_may_not_be_deleted(as_agent: Kubectl, agent: Agent, foreign: dict[str, Any]) -> None:
    name = foreign["metadata"]["name"]
    with pytest.raises(KubectlError, match="may not write a ResourceSlice of"):
        as_agent.run("delete", "resourceslice", name, "--wait=false")
    assert agent.node.kubectl().get("resourceslice", name) is not None


def test_a_pool_that_others_left_on_its_node_may_be_removed(as_agent: Kubectl, agent: Agent) -> None:
    """The running agent does so by itself, and may be quicker."""
    admin = agent.node.kubectl()
    name = admin.run(
        "create", "-f", "-", "-o", "name", stdin=yaml.safe_dump(slice_of(NODE, pool_name="left-over"))
    ).strip()
    as_agent.run("delete", name, "--ignore-not-found")
    assert name not in admin.run("get", "resourceslices", "-o", "name").split()


def test_a_foreign_slice_may_not_be_changed(as_agent: Kubectl, agent: Agent, foreign: dict[str, Any]) -> None:
    name = foreign["metadata"]["name"]
    changed = {**foreign, "metadata": {**foreign["metadata"], "labels": {"changed-by": "the-agent"}}}
    with pytest.raises(KubectlError, match="may not write a ResourceSlice of"):
        as_agent.run("replace", "-f", "-", stdin=yaml.safe_dump(changed))
    assert agent.node.kubectl().json("get", "resourceslice", name)["metadata"].get("labels") is None


def test_a_foreign_slice_may_not_be_made_its_own(as_agent: Kubectl, agent: Agent, foreign: dict[str, Any]) -> None:
    """The API itself refuses a new node, pool name or driver before the policy is asked; either will do."""
    name = foreign["metadata"]["name"]
    taken = {**foreign, "spec": slice_of(NODE)["spec"]}
    with pytest.raises(KubectlError):
        as_agent.run("replace", "-f", "-", stdin=yaml.safe_dump(taken))
    assert agent.node.kubectl().json("get", "resourceslice", name)["spec"] == foreign["spec"]


@pytest.mark.parametrize("rest", [["resourceclaims", "--subresource=status", "-A"], ["events.events.k8s.io", "-A"]])
def test_it_may_patch(as_agent: Kubectl, rest: list[str]) -> None:
    as_agent.run("auth", "can-i", "patch", *rest)


CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "shown"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
}


def show(as_agent: Kubectl, world: World, node: str, driver: str) -> None:
    """By server-side apply: to patch, kubectl reads the status first, which the agent has no right to."""
    result = {"request": "r", "driver": driver, "pool": node, "device": "one"}
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}
    world.create(CLAIM)
    patch = ("patch", "resourceclaim", "shown", "-n", world.namespace, "--subresource=status", "--type=merge", "-p")
    world.kubectl.run(*patch, json.dumps({"status": {"allocation": allocation}}))
    entry = {"driver": driver, "pool": node, "device": "one", "data": {"x": 1}}
    body = {**{key: CLAIM[key] for key in ("apiVersion", "kind", "metadata")}, "status": {"devices": [entry]}}
    apply = ("apply", "--server-side", "--subresource=status", "--field-manager=policy-test", "-f", "-")
    as_agent.run(*apply, "-n", world.namespace, stdin=yaml.safe_dump(body))


def test_a_device_of_its_own_may_be_shown_in_a_claim(as_agent: Kubectl, world: World) -> None:
    show(as_agent, world, NODE, "gpu.nvidia.com")


@pytest.mark.parametrize(
    ("node", "driver", "words"),
    [
        (OTHER, "gpu.nvidia.com", "may not change a claim that isn't allocated to this node"),
        (NODE, "dra.example.com", "may not change what other drivers show"),
    ],
    ids=["allocated to another node", "another driver's device"],
)
def test_a_foreign_device_may_not_be_shown_in_a_claim(
    as_agent: Kubectl, world: World, node: str, driver: str, words: str
) -> None:
    """Before Kubernetes 1.36 it is the policy that refuses, from then on the API server itself comes first."""
    with pytest.raises(KubectlError) as refused:
        show(as_agent, world, node, driver)
    assert words in str(refused.value) or 'resource "resourceclaims/driver"' in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        "get secrets -A",
        "delete pods -A",
        "create pods -A",
        "update pods -A",
        "patch pods --subresource=status -A",
        "delete node node-1",
        "create deviceclass",
        "patch resourceclaims -A",
    ],
)
def test_it_may_do_nothing_else(as_agent: Kubectl, words: str) -> None:
    verb, resource, *rest = words.split()
    with pytest.raises(KubectlError):
        as_agent.run("auth", "can-i", verb, resource, *rest)
