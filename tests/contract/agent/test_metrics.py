"""What Prometheus and probes get of a running agent, over HTTP: after good and bad calls, with bad hardware, with an
API server that fails, beside another instance, and while something hangs."""

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.stage import NODE_NAME
from kubeapi.client import EVENTS, PODS
from kubeletplugin.app.ends import http
from tests.contract.agent.node import AgentNode, RunningAgent, until, until_true
from tests.unit.app.metrics.exposition import Exposition, problems

pytestmark = pytest.mark.anyio

Condition = Callable[[Exposition], object]


class Monitor:
    """Prometheus and the kubelet's probes: ``start`` an agent that they can reach, and ask it."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        self.port = free_port()

    def start(self, **settings: Any) -> RunningAgent:
        return self._node.start_agent(http_endpoint=f"127.0.0.1:{self.port}", **settings)

    async def get(self, path: str) -> tuple[int, str]:
        """Status 0 while nobody listens."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.port}{path}", timeout=aiohttp.ClientTimeout(5)) as response,
            ):
                return response.status, await response.text()
        except aiohttp.ClientConnectorError:
            return 0, ""

    async def scrape(self) -> Exposition:
        status, text = await self.get("/metrics")
        assert status == 200
        return Exposition(text)

    async def until(self, condition: Condition) -> Exposition:
        """The first scrape of which it is true."""

        async def ask() -> Exposition | None:
            status, text = await self.get("/metrics")
            seen = Exposition(text)
            return seen if status == 200 and condition(seen) else None

        found = await until(ask)
        assert found is not None
        return found

    async def ready(self) -> None:
        await until(self._is_ready)

    async def _is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200


@pytest.fixture
def monitor(node: AgentNode) -> Monitor:
    return Monitor(node)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def start_pod(node: AgentNode, uid: str, claim: str, container: str) -> None:
    """As the API server shows it once it is bound."""
    node.server.put(
        PODS,
        {
            "metadata": {"name": f"pod-{uid}", "namespace": "default", "uid": uid},
            "spec": {
                "nodeName": NODE_NAME,
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
                "containers": [{"name": container, "resources": {"claims": [{"name": "gpu", "request": "gpu"}]}}],
            },
            "status": {"phase": "Running"},
        },
    )


async def test_good_and_bad_calls(node: AgentNode, monitor: Monitor) -> None:
    monitor.start()
    await monitor.ready()
    train, late = node.allocate("train", "gpu-3", pod="1"), node.allocate("late", "gpu-3", pod="2")
    start_pod(node, "1", "train", "main")
    await node.prepare("1", train)
    with pytest.raises(PodError, match="is held by"):
        await node.prepare("2", late)
    who = ("claim", "namespace", "pod", "container", "device", "pci_address")
    uuid = node.machine().state().gpus[3].uuid
    seen = await monitor.until(lambda it: ("pod-1",) in it.series("gpuclaim_claim_device_info", "pod"))
    assert problems(seen.families) == []
    (labels,) = seen.series("gpuclaim_claim_device_info", *who)
    assert labels[:-1] == ("train", "default", "pod-1", "main", "gpu-3")
    assert labels[-1].endswith(":00.0")
    assert seen.series("gpuclaim_claim_device_info", "uuid", "UUID") == {(uuid, uuid): 1}
    assert seen.series("gpuclaim_claim_duration_seconds_count", "operation", "outcome") == {
        ("prepare", "success"): 1,
        ("prepare", "error"): 1,
    }
    assert seen.value("nvidia_dra_requests_total", driver=DRIVER_NAME, operation="prepare") == 1
    assert seen.value("nvidia_dra_node_prepare_errors_total", driver=DRIVER_NAME) == 1
    assert seen.series("nvidia_dra_prepared_devices", "node", "device_type") == {(NODE_NAME, "gpu"): 1}
    assert seen.series("gpuclaim_devices", "device_type", "state") == {("gpu", "available"): 7, ("gpu", "held"): 1}
    assert seen.series("gpuclaim_holds", "route", "state") == {("claim", "held"): 1}
    assert seen.series("gpuclaim_slice_writes_total", "verb") == {("create",): 1}
    assert (seen.value("gpuclaim_ledger_size_bytes") or 0) > 4096
    assert (seen.value("gpuclaim_api_request_duration_seconds_count", verb="get", resource="resourceclaims") or 0) >= 2
    await node.kubelet.unprepare("1", [train])
    seen = await monitor.scrape()
    assert seen.value("gpuclaim_claim_duration_seconds_count", operation="unprepare", outcome="success") == 1
    assert seen.series("gpuclaim_claim_device_info", *who) == {}
    assert seen.series("gpuclaim_devices", "device_type", "state") == {("gpu", "available"): 8}


async def test_a_device_that_drains(node: AgentNode, monitor: Monitor) -> None:
    monitor.start()
    await monitor.ready()
    claim = node.allocate("train", "gpu-3", pod="1")
    await node.prepare("1", claim)
    node.pods.run("1", 4242)
    await node.kubelet.unprepare("1", [claim])
    seen = await monitor.scrape()
    assert seen.series("gpuclaim_devices", "state") == {("available",): 7, ("draining",): 1}
    node.pods.end("1")
    await monitor.until(lambda it: it.value("gpuclaim_devices", device_type="gpu", state="available") == 8)


async def test_a_lost_gpu_is_told_of_once_and_returns(node: AgentNode, monitor: Monitor) -> None:
    first = monitor.start(rescan_interval=0.1)
    await monitor.ready()
    machine = node.machine()
    uuid = machine.state().gpus[3].uuid
    machine.lose_gpu(3)
    seen = await monitor.until(lambda it: it.value("gpuclaim_devices", device_type="gpu", state="withheld") == 1)
    assert seen.value("gpuclaim_devices", device_type="gpu", state="available") == 7
    lost = [key for key in seen.series("gpuclaim_nvml_errors_total", "call", "code") if key[1] == "GPU_IS_LOST"]
    assert lost
    await until_true(lambda: len(told(node)) == 1)
    await first.stop()
    monitor.start(rescan_interval=0.1)
    await monitor.ready()
    await monitor.until(lambda it: it.value("gpuclaim_devices", device_type="gpu", state="withheld") == 1)
    assert len(told(node)) == 1, "a restart is no news"
    machine.restore_gpu(3)
    await until_true(lambda: len(told(node)) == 2)
    assert [uuid in note for note in told(node)] == [True, True]
    await monitor.until(lambda it: it.value("gpuclaim_devices", device_type="gpu", state="available") == 8)


async def test_a_gpu_that_hangs_stops_no_scrape_and_is_told_of_once(node: AgentNode, monitor: Monitor) -> None:
    monitor.start(rescan_interval=0.1, nvml_timeout=0.2)
    await monitor.ready()
    machine = node.machine()
    uuid = machine.state().gpus[3].uuid
    machine.hang(3, "memory_info")

    def given_up(seen: Exposition) -> float:
        return seen.value("gpuclaim_nvml_timeouts_total", gpu=uuid) or 0

    try:
        seen = await monitor.until(lambda it: given_up(it) >= 3)
        assert seen.series("gpuclaim_devices", "state") == {("available",): 7, ("withheld",): 1}
    finally:
        machine.clear_faults()
    await until_true(lambda: len(told(node)) == 2)
    assert [uuid in note for note in told(node)] == [True, True]


async def test_a_core_key_that_cant_be_read_is_told_of_once(node: AgentNode, monitor: Monitor) -> None:
    monitor.start(rescan_interval=0.1)
    await monitor.ready()
    machine = node.machine()
    machine.inject_fault(3, "memory_info", times=3)
    await monitor.until(lambda it: it.value("gpuclaim_nvml_errors_total", call="memory_info", code="UNKNOWN") == 3)
    await until_true(lambda: len(told(node)) == 2)
    assert any("what every device must carry" in note for note in told(node))


def told(node: AgentNode) -> list[str]:
    """Of GPUs, on the Node."""
    return [it["note"] for it in node.server.objects(EVENTS) if it["reason"] in ("GPUWithheld", "GPUReturned")]


async def test_a_server_that_fails(node: AgentNode, monitor: Monitor) -> None:
    node.server.faults.fail(403, times=1_000_000, resource="resourceslices")
    monitor.start()
    seen = await monitor.until(
        lambda it: it.value("gpuclaim_api_errors_total", verb="list", resource="resourceslices", code="403")
    )
    assert not seen.value("gpuclaim_api_request_duration_seconds_count", verb="list", resource="resourceslices")
    status, reason = await monitor.get("/readyz")
    assert (status, await monitor.get("/healthz")) == (503, (200, "ok"))
    assert reason
    node.server.faults.release()
    await monitor.ready()
    assert (await monitor.scrape()).value("gpuclaim_slices_accepted") == 1


async def test_ready_when_registered_active_and_accepted(node: AgentNode, monitor: Monitor) -> None:
    root = node.folder / "elsewhere"
    agent = monitor.start(kubelet_root_dir=root)
    await until(answers(monitor, "/readyz", 503, f"the kubelet's folder {root}/plugins_registry isn't there"))
    assert await monitor.get("/healthz") == (200, "ok"), "no livenessProbe may end an agent that waits"
    assert (await monitor.scrape()).value("nvidia_dra_requests_total", operation="prepare") == 0
    await agent.stop()
    assert await monitor.get("/healthz") == (0, "")
    agent = monitor.start()
    await monitor.ready()
    seen = await monitor.scrape()
    names = ("gpuclaim_agent_ready", "gpuclaim_agent_active", "gpuclaim_agent_registered", "gpuclaim_takeovers_total")
    assert [seen.value(name) for name in names] == [1, 1, 1, 1]
    await agent.stop()
    assert await monitor.get("/readyz") == (0, "")


def answers(monitor: Monitor, path: str, *answer: object) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return await monitor.get(path) == answer

    return ask


async def test_a_taken_port_costs_the_agent_nothing(
    node: AgentNode, monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "RETRY_SECONDS", 0.01)
    with socket.socket() as other:
        other.bind(("127.0.0.1", monitor.port))
        other.listen()
        monitor.start()
        await node.ready()
        await node.prepare("1", node.allocate("train", "gpu-3", pod="1"))
    await monitor.ready()
    assert (await monitor.scrape()).value("gpuclaim_claims_prepared") == 1


async def test_two_instances_count_each_gpu_and_each_call_once(node: AgentNode) -> None:
    old, new = Monitor(node), Monitor(node)
    first = old.start(pod_uid="old")
    await old.ready()
    claim = node.allocate("train", "gpu-3", pod="1")
    await node.prepare("1", claim)
    new.start(pod_uid="new")
    await new.ready()
    seen = {"old": await old.scrape(), "new": await new.scrape()}
    assert {name: it.value("gpuclaim_agent_active") for name, it in seen.items()} == {"old": 0, "new": 1}
    assert {name: it.value("gpuclaim_claims_prepared") for name, it in seen.items()} == {"old": None, "new": 1}
    assert (await old.get("/readyz"))[0] == 503
    await node.kubelet.unprepare("1", [claim])
    await first.stop()
    await new.ready()
    counts = [
        it.value("gpuclaim_claim_duration_seconds_count", operation=operation, outcome="success")
        for it, operation in ((seen["old"], "prepare"), (await new.scrape(), "unprepare"))
    ]
    assert counts == [1, 1]
    assert (await new.scrape()).value("nvidia_dra_requests_total", operation="prepare") == 0
