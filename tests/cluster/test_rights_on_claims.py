"""The admission policy bites: an agent shows its devices in claims of its own node, and changes nothing else of claims.

Beside it the API server has rules of its own, from 1.36 on; here the agent may do everything, so that only the policy
stands in its way on every release.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.cluster.harness.agent import NAMESPACE, SERVICE_ACCOUNT, Agent
from tests.cluster.harness.kubectl import Kubectl, KubectlError
from tests.cluster.world import World

NODE, OTHER = "node-1", "node-2"
OURS, THEIRS = "gpu.nvidia.com", "dra.example.com"
Json = dict[str, Any]

CONSUMER = {"apiGroup": "example.com", "resource": "jobs", "name": "consumer", "uid": "consumer"}
"""Not a pod, which the control plane would miss."""
JOINING = {"apiGroup": "example.com", "resource": "jobs", "name": "joining", "uid": "joining"}


def entry(driver: str, **more: Any) -> Json:
    return {"driver": driver, "pool": NODE, "device": "one", **more}


def term(key: str, node: str, kind: str = "matchFields") -> Json:
    return {kind: [{"key": key, "operator": "In", "values": [node]}]}


def allocation(*terms: Json) -> Json:
    results = [{"request": "r", **entry(OURS)}, {"request": "r", **entry(THEIRS)}]
    selector = {"nodeSelector": {"nodeSelectorTerms": list(terms)}} if terms else {}
    return {"devices": {"results": results}, **selector}


HERE = term("metadata.name", NODE)
SHOWN = entry(THEIRS, data={"theirs": 1})
OF_OURS = entry(OURS, data={"ours": 1})


def a_claim(name: str) -> Json:
    exactly = {"deviceClassName": OURS, "allocationMode": "ExactCount", "count": 2}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


class Claims:
    """Written by an administrator; changed, or not, by the agent."""

    def __init__(self, world: World, agent: Kubectl) -> None:
        self.world = world
        self._agent = agent

    def make(self, allocated: Json | None) -> None:
        self.world.create(a_claim("shown"))
        if allocated is None:
            return
        status = {"allocation": allocated, "reservedFor": [CONSUMER], "devices": [SHOWN]}
        self.world.kubectl.run(*self._patch(), json.dumps({"status": status}))

    def patch(self, status: Json) -> None:
        self._agent.run(*self._patch(), json.dumps({"status": status}))

    def apply(self, *devices: Json) -> None:
        body = {**a_claim("shown"), "status": {"devices": list(devices)} if devices else {}}
        del body["spec"]
        words = ("apply", "--server-side", "--subresource=status", "--field-manager=policy-test", "-f", "-")
        self._agent.run(*words, "-n", self.world.namespace, stdin=yaml.safe_dump(body))

    def status(self) -> Json:
        found: Json = self.world.kubectl.json("get", "resourceclaim", "shown", "-n", self.world.namespace)
        return dict(found.get("status") or {})

    def shown(self) -> dict[str, Json]:
        """Data of the devices by driver."""
        return {shown["driver"]: shown["data"] for shown in self.status()["devices"]}

    def _patch(self) -> tuple[str, ...]:
        where = ("-n", self.world.namespace, "--subresource=status", "--type=merge", "-p")
        return ("patch", "resourceclaim", "shown", *where)


@pytest.fixture(scope="module")
def all_rights(shared_agent: Agent) -> Iterator[None]:
    admin = shared_agent.node.kubectl()
    subject = f"--serviceaccount={NAMESPACE}:{SERVICE_ACCOUNT}"
    admin.run("create", "clusterrolebinding", "policy-test-claims", "--clusterrole=cluster-admin", subject)
    yield
    admin.run("delete", "clusterrolebinding", "policy-test-claims")


@pytest.fixture
def claims(all_rights: None, agent: Agent, world: World) -> Claims:
    return Claims(world, agent.node.kubectl(agent.node.layout.config / f"{agent.name}.conf"))


def test_it_may_show_its_device_and_take_it_away(claims: Claims) -> None:
    claims.make(allocation(HERE))
    for devices in ((OF_OURS,), (entry(OURS, data={"ours": 2}),), ()):
        claims.apply(*devices)
        assert claims.shown() == {shown["driver"]: shown["data"] for shown in (SHOWN, *devices)}


@pytest.mark.parametrize(
    "terms",
    [
        (term("metadata.name", OTHER),),
        (HERE, term("metadata.name", OTHER)),
        (term("kubernetes.io/hostname", NODE, kind="matchExpressions"),),
        (),
    ],
    ids=["of another node", "of another node, too", "by a label", "of any node"],
)
def test_a_claim_of_another_node_is_not_its_business(claims: Claims, terms: tuple[Json, ...]) -> None:
    claims.make(allocation(*terms))
    before = claims.status()
    with pytest.raises(KubectlError) as refused:
        claims.patch({"devices": [SHOWN, OF_OURS]})
    assert "may not change a claim that isn't allocated to this node" in str(refused.value)
    assert claims.status() == before


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        ({"allocation": None, "reservedFor": None, "devices": None}, "nothing of a claim's status but its devices"),
        ({"reservedFor": None}, "nothing of a claim's status but its devices"),
        ({"reservedFor": [CONSUMER, JOINING]}, "nothing of a claim's status but its devices"),
        ({"devices": None}, "may not change what other drivers show"),
        ({"devices": [OF_OURS]}, "may not change what other drivers show"),
        ({"devices": [entry(THEIRS, data={"theirs": 2})]}, "may not change what other drivers show"),
    ],
    ids=["deallocate", "drop a consumer", "add a consumer", "drop all", "replace another's", "change another's"],
)
def test_whatever_its_rights_it_may_do_nothing_else_to_claims(claims: Claims, status: Json, refusal: str) -> None:
    claims.make(allocation(HERE))
    before = claims.status()
    with pytest.raises(KubectlError) as refused:
        claims.patch(status)
    assert refusal in str(refused.value)
    assert claims.status() == before


def test_it_may_not_allocate_a_claim(claims: Claims) -> None:
    claims.make(None)
    with pytest.raises(KubectlError) as refused:
        claims.patch({"allocation": allocation(HERE)})
    assert "may not change a claim that isn't allocated to this node" in str(refused.value)
    assert claims.status() == {}
