"""What the active instance keeps true by itself, without any call of the kubelet."""

import pytest

from gpuclaim.demo.kubelet import PodClaim
from kubeapi.client import RESOURCE_CLAIMS
from tests.contract.agent.node import AgentNode, until, until_true

pytestmark = pytest.mark.anyio


async def pods_of(node: AgentNode, device: str) -> list[str]:
    found = next(entry for entry in (await node.status())["devices"] if entry["name"] == device)
    return [pod for holder in found["holders"] for pod in holder["pods"]]


async def prepared(node: AgentNode) -> PodClaim:
    await node.ready()
    claim = node.allocate("train", "gpu-1", pod="pod-1")
    await node.prepare("pod-1", claim)
    return claim


async def test_a_claims_file_that_was_wiped_is_back_after_a_restart(node: AgentNode) -> None:
    first = node.start_agent()
    await prepared(node)
    files = node.claim_files()
    await first.stop()
    for name in files:
        (node.settings.cdi_dir / name).unlink()
    node.start_agent()
    await node.ready()
    await until_true(lambda: node.claim_files() == files)


async def test_temporary_files_of_dead_instances_go(node: AgentNode) -> None:
    first = node.start_agent()
    await prepared(node)
    await first.stop()
    stray = node.settings.cdi_dir / "k8s.gpu.nvidia.com-claim_x.json.dead-instance.1.0.tmp"
    foreign = node.settings.cdi_dir / "somebody-elses.tmp"
    for path in (stray, foreign):
        path.write_text("{")
    node.start_agent()
    await node.ready()
    assert not stray.exists() and foreign.exists()


async def test_a_pod_that_joins_is_known_from_the_kubelets_state(node: AgentNode) -> None:
    node.start_agent()
    claim = await prepared(node)
    # The kubelet has the claim prepared, so that this one brings no call.
    await node.prepare("pod-2", claim)

    async def known() -> bool:
        return "pod-2" in await pods_of(node, "gpu-1")

    await until(known)


async def test_a_pod_that_joins_is_known_from_the_claims_watch(node: AgentNode) -> None:
    node.start_agent()
    claim = await prepared(node)
    body = node.server.object(RESOURCE_CLAIMS, claim.name, claim.namespace)
    body["status"]["reservedFor"].append({"resource": "pods", "name": "late", "uid": "pod-3"})
    node.server.put(RESOURCE_CLAIMS, body)

    async def known() -> bool:
        return "pod-3" in await pods_of(node, "gpu-1")

    await until(known)


async def test_the_drivers_file_follows_a_driver_upgrade(node: AgentNode) -> None:
    node.start_agent(rescan_interval=0.1)
    await prepared(node)
    driver = node.settings.cdi_dir / "k8s.gpu.nvidia.com-driver.json"
    assert "libcuda.so.580.105.08" in driver.read_text()
    node.machine().set_driver(version="580.126.20")
    await until_true(lambda: "libcuda.so.580.126.20" in driver.read_text())
