"""The admission policy bites: an agent writes one annotation on pods of its own node, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.harness import images
from tests.cluster.harness.agent import NAMESPACE, SERVICE_ACCOUNT, Agent
from tests.cluster.harness.kubectl import Kubectl, KubectlError

NODE, OTHER = "node-1", "node-2"
WAKES = "gpu.nvidia.com/wakes"
OWNED = '{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}'


def a_pod(name: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"kept": "1"}, "annotations": {"kept": "1"}},
        "spec": {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "pause", "image": images.PAUSE}],
        },
    }


@pytest.fixture
def as_agent(agent: Agent) -> Kubectl:
    return agent.node.kubectl(agent.node.layout.config / f"{agent.name}.conf")


@pytest.fixture(scope="module")
def pods(shared_agent: Agent) -> Iterator[Kubectl]:
    """A pod on the agent's node and one on another, and an agent that may do everything, so that only the policy stands
    in its way."""
    admin = shared_agent.node.kubectl()
    names = ("policy-mine", "policy-foreign")
    admin.apply(*(a_pod(name, node) for name, node in zip(names, (NODE, OTHER), strict=True)), namespace="default")
    subject = f"--serviceaccount={NAMESPACE}:{SERVICE_ACCOUNT}"
    admin.run("create", "clusterrolebinding", "policy-test", "--clusterrole=cluster-admin", subject)
    yield admin
    admin.run("delete", "clusterrolebinding", "policy-test")
    admin.run("delete", "pods", "-n", "default", *names, "--ignore-not-found", "--force", "--grace-period=0")


def test_it_may_wake_a_pod_of_its_node(pods: Kubectl, as_agent: Kubectl) -> None:
    for words in (f"{WAKES}=1", f"{WAKES}=2 --overwrite", f"{WAKES}-"):
        as_agent.run("annotate", "pod", "policy-mine", "-n", "default", *words.split())


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (f"annotate pod policy-foreign {WAKES}=1", "the agent of node node-1 may not change a pod of another node"),
        ("annotate pod policy-mine other=1", "may change no annotation of a pod but"),
        ("annotate pod policy-mine kept=2 --overwrite", "may change no annotation of a pod but"),
        ("annotate pod policy-mine kept-", "may change no annotation of a pod but"),
        (f"annotate pod policy-mine {WAKES}=100", "may write nothing but a number of at most two digits"),
        (f"annotate pod policy-mine {WAKES}=x", "may write nothing but a number of at most two digits"),
        (f"annotate pod policy-mine {WAKES}=", "may write nothing but a number of at most two digits"),
        ("label pod policy-mine other=1", "may change nothing of a pod but"),
        ("label pod policy-mine kept-", "may change nothing of a pod but"),
        ('patch pod policy-mine -p {"spec":{"activeDeadlineSeconds":5}}', "may change nothing of a pod but"),
        ('patch pod policy-mine -p {"metadata":{"finalizers":["a.b/c"]}}', "may change nothing of a pod but"),
        ('patch pod policy-mine -p {"metadata":{"generateName":"a-"}}', "may change nothing of a pod but"),
        (f"patch pod policy-mine -p {OWNED}", "may change nothing of a pod but"),
        (
            'patch pod policy-mine --subresource=status -p {"status":{"message":"x"}}',
            "may only change pods, not UPDATE their status",
        ),
        ("delete pod policy-mine --wait=false", "may only change pods, not DELETE them"),
        ("exec policy-mine -- ls", "may only change pods, not CONNECT their exec"),
        ("run policy-new --image=x", "may only change pods, not CREATE them"),
    ],
)
def test_whatever_its_rights_it_may_do_nothing_else_to_pods(
    pods: Kubectl, as_agent: Kubectl, words: str, refusal: str
) -> None:
    with pytest.raises(KubectlError) as refused:
        as_agent.run("-n", "default", *words.split())
    assert refusal in str(refused.value)
