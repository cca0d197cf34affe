"""What is kept of a node's pods, and for how long."""

import asyncio
from typing import Any

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import PODS, Json
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeletplugin.app.watch.pods import NodePods, PodContainer, read_pod
from kubeletplugin.clock import SystemClock

pytestmark = pytest.mark.anyio


def a_pod(name: str = "p", *, node: str = "node-a", **parts: Any) -> Json:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", **parts.get("metadata", {})}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, **parts.get("spec", {})},
        "status": parts.get("status", {}),
    }


def test_claims_by_the_pods_own_names() -> None:
    pod = read_pod(
        a_pod(
            spec={
                "resourceClaims": [
                    {"name": "made", "resourceClaimTemplateName": "t"},
                    {"name": "given", "resourceClaimName": "shared"},
                    {"name": "not-yet", "resourceClaimTemplateName": "t"},
                    {"name": "none-needed", "resourceClaimTemplateName": "t"},
                ],
                "initContainers": [{"name": "init", "resources": {"claims": [{"name": "made"}]}}],
                "containers": [
                    {"name": "a", "resources": {"claims": [{"name": "made", "request": "gpu"}, {"name": "not-yet"}]}},
                    {"name": "b", "resources": {"claims": [{"name": "given"}, {"name": "none-needed"}]}},
                    {"name": "idle"},
                ],
            },
            status={
                "resourceClaimStatuses": [
                    {"name": "made", "resourceClaimName": "p-made-x7"},
                    {"name": "none-needed"},
                ]
            },
        )
    )
    assert pod.claims == {"made": "p-made-x7", "given": "shared"}
    assert pod.claim_names == {"p-made-x7", "shared"}
    assert pod.containers == (
        PodContainer("init", (("p-made-x7", ""),)),
        PodContainer("a", (("p-made-x7", "gpu"),)),
        PodContainer("b", (("shared", ""),)),
    )


def test_the_claim_of_an_extended_resource() -> None:
    pod = read_pod(
        a_pod(
            spec={"containers": [{"name": "c"}]},
            status={
                "extendedResourceClaimStatus": {
                    "resourceClaimName": "p-extended-resources-x",
                    "requestMappings": [
                        {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
                    ],
                }
            },
        )
    )
    assert pod.claim_names == {"p-extended-resources-x"}
    assert pod.containers == (PodContainer("c", (("p-extended-resources-x", "container-0-request-0"),)),)


@pytest.mark.parametrize(
    ("status", "started"),
    [
        ({}, False),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, False),
        ({"containerStatuses": [{"state": {"running": {}}}]}, True),
        ({"initContainerStatuses": [{"state": {"terminated": {}}}]}, True),
        ({"conditions": [{"type": "PodReadyToStartContainers", "status": "True"}]}, True),
        ({"conditions": [{"type": "PodReadyToStartContainers", "status": "False"}]}, False),
        # after a reboot
        (
            {
                "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
                "containerStatuses": [{"state": {"terminated": {}}}],
            },
            False,
        ),
        (
            {
                "conditions": [{"type": "PodReadyToStartContainers", "status": "False"}],
                "containerStatuses": [{"state": {"running": {}}}],
            },
            True,
        ),
    ],
)
def test_started(status: Json, started: bool) -> None:
    assert read_pod(a_pod(status=status)).started is started


@pytest.mark.parametrize(("text", "count"), [("3", 3), ("", 0), ("-1", 0), ("many", 0), ("٣", 0), ("99999", 0)])
def test_the_count_of_wakes_may_be_anything(text: str, count: int) -> None:
    assert read_pod(a_pod(metadata={"annotations": {"gpu.nvidia.com/wakes": text}})).wakes == count


def test_the_rest() -> None:
    times = {"creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:05:05Z"}
    pod = read_pod(a_pod(metadata=times, status={"phase": "Pending"}))
    assert (pod.uid, pod.namespace, pod.name) == ("uid-p", "team", "p")
    assert (pod.phase, pod.deleting, pod.created) == ("Pending", True, "2026-01-02T03:04:05Z")
    assert not read_pod(a_pod()).deleting


async def test_the_pods_of_this_node_while_it_runs() -> None:
    async with FakeApiServer() as server, RestKubeApi(FixedConnection(Connection(server.url))) as api:
        for number in range(60):
            server.put(PODS, a_pod(f"p{number}"))
        server.put(PODS, a_pod("elsewhere", node="node-b"))
        server.put(PODS, {"metadata": {"name": "unbound", "namespace": "team"}, "spec": {}})
        pods = NodePods(api, SystemClock(), "node-a")
        changed = asyncio.Event()
        pods.listen(changed.set)
        work = asyncio.create_task(pods.run())

        async def until(count: int) -> None:
            async with asyncio.timeout(10):
                while len(pods.records()) != count:
                    changed.clear()
                    await changed.wait()

        await until(60)
        assert pods.get("uid-p7") is not None and pods.get("uid-elsewhere") is None
        server.remove(PODS, "p7", "team")
        await until(59)
        assert pods.get("uid-p7") is None
        server.put(PODS, a_pod("elsewhere", node="node-a"))
        await until(60)
        server.put(PODS, a_pod("p8", status={"phase": "Running"}))
        async with asyncio.timeout(10):
            while (pod := pods.get("uid-p8")) is not None and pod.phase != "Running":
                changed.clear()
                await changed.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert not pods.records()
