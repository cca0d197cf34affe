"""Prepare and Unprepare as a kubelet makes them."""

import asyncio
from collections.abc import Mapping, Sequence

import grpc
import grpc.aio
import pytest

from gpuclaim.demo.kubelet import PodError
from kubeletplugin.dra.calls import INTERNAL_ERROR, OUT_OF_TIME
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.dra.v1beta1 import api_pb2 as v1beta1
from kubeletplugin.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.dra.support import DRIVER, Agent, Node, claim, device_for, until

pytestmark = pytest.mark.anyio


def channel(agent: Agent) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(agent.paths.dra_target)


def request(*numbers: int) -> v1.NodePrepareResourcesRequest:
    claims = [claim(number) for number in numbers]
    return v1.NodePrepareResourcesRequest(
        claims=[v1.Claim(uid=item.uid, namespace=item.namespace, name=item.name) for item in claims]
    )


async def test_a_pods_claims_are_prepared_and_unprepared(node: Node) -> None:
    agent = await node.start("a")
    ids = await node.kubelet.prepare("pod-1", [claim(1), claim(2)])
    assert ids == {
        "uid-1": ["k8s.gpu.nvidia.com/claim=uid-1-gpu-0"],
        "uid-2": ["k8s.gpu.nvidia.com/claim=uid-2-gpu-0"],
    }
    await node.kubelet.unprepare("pod-1", [claim(1), claim(2)])
    assert agent.handler.unprepared == ["uid-1", "uid-2"]
    assert node.kubelet.claims.claims == {}


async def test_share_ids_exist_in_v1_only(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.answer = lambda claims: {ref.uid: PrepareResult((device_for(ref, "share-7"),)) for ref in claims}
    async with channel(agent) as client:
        newer = await v1_grpc.DRAPluginStub(client).NodePrepareResources(request(1))
        older_request = v1beta1.NodePrepareResourcesRequest.FromString(request(1).SerializeToString())
        older = await v1beta1_grpc.DRAPluginStub(client).NodePrepareResources(older_request)
        undone = await v1beta1_grpc.DRAPluginStub(client).NodeUnprepareResources(
            v1beta1.NodeUnprepareResourcesRequest(claims=older_request.claims)
        )
    (device,) = newer.claims["uid-1"].devices
    assert (device.share_id, device.pool_name, device.device_name) == ("share-7", "node-1", "gpu-0")
    assert list(device.request_names) == ["gpu"]
    without = v1.Device()
    without.CopyFrom(device)
    without.ClearField("share_id")
    (older_device,) = older.claims["uid-1"].devices
    assert older_device.SerializeToString(deterministic=True) == without.SerializeToString(deterministic=True)
    assert undone.claims["uid-1"].error == ""


async def test_one_claims_error_leaves_the_others_prepared(node: Node) -> None:
    agent = await node.start("a")

    def answer(claims: Sequence[ClaimRef]) -> Mapping[str, PrepareResult]:
        return {**agent.handler.succeed(claims), "uid-2": PrepareResult(error="gpu-0 is held by claim uid-9")}

    agent.handler.answer = answer
    async with channel(agent) as client:
        response = await v1_grpc.DRAPluginStub(client).NodePrepareResources(request(1, 2))
    assert len(response.claims["uid-1"].devices) == 1
    assert response.claims["uid-2"].error == "gpu-0 is held by claim uid-9"
    with pytest.raises(PodError) as caught:
        await node.kubelet.prepare("pod-1", [claim(2)])
    assert str(caught.value) == (
        "prepare dynamic resources: NodePrepareResources failed for ResourceClaim claim-2: gpu-0 is held by claim uid-9"
    )


async def test_exactly_one_entry_per_claim_whatever_the_handler_returns(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await node.start("a")
    agent.handler.answer = lambda claims: {
        "uid-1": PrepareResult((device_for(claims[0]),)),
        "uid-99": PrepareResult(error="nobody asked"),
    }
    async with channel(agent) as client:
        response = await v1_grpc.DRAPluginStub(client).NodePrepareResources(request(1, 2, 2))
    assert sorted(response.claims) == ["uid-1", "uid-2"]
    assert response.claims["uid-2"].error == INTERNAL_ERROR
    assert agent.handler.prepared == ["uid-1", "uid-2"]
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert record.message == "claim default/claim-2 got no answer"
    assert vars(record)["claim"] == "uid-2"


async def test_an_exception_reaches_the_pod_without_its_text(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    agent = await node.start("a")

    def answer(claims: Sequence[ClaimRef]) -> Mapping[str, PrepareResult]:
        raise RuntimeError("secret of another namespace")

    agent.handler.answer = answer
    with pytest.raises(PodError) as caught:
        await node.kubelet.prepare("pod-1", [claim(1)])
    assert str(caught.value).endswith(f"for ResourceClaim claim-1: {INTERNAL_ERROR}")
    assert "secret of another namespace" in caplog.text


async def test_the_callers_deadline_ends_the_call_but_not_the_work(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    async with channel(agent) as client:
        call = v1_grpc.DRAPluginStub(client).NodePrepareResources(request(1), timeout=30)
        waiting = asyncio.ensure_future(call.code())
        await agent.handler.called.wait()
        call.cancel()
        assert await waiting is grpc.StatusCode.CANCELLED
    agent.handler.gate.set()
    await until(lambda: agent.handler.finished == ["uid-1"])


async def test_a_call_that_runs_out_of_time_is_answered_before_the_kubelet_gives_up(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    async with channel(agent) as client:
        response = await v1_grpc.DRAPluginStub(client).NodePrepareResources(request(1), timeout=0.2)
    assert response.claims["uid-1"].error == OUT_OF_TIME
    assert agent.handler.finished == []


async def test_the_handler_is_told_a_deadline_two_seconds_before_the_kubelets(node: Node) -> None:
    agent = await node.start("a")
    before = asyncio.get_running_loop().time()
    await node.kubelet.prepare("pod-1", [claim(1)])
    after = asyncio.get_running_loop().time()
    (deadline,) = agent.handler.deadlines
    assert before + 42 < deadline < after + 44  # the wire rounds a deadline


async def test_a_second_pod_of_a_claim_is_prepared_again_only_after_a_kubelet_restart(node: Node) -> None:
    agent = await node.start("a")
    await node.kubelet.prepare("pod-1", [claim(1)])
    await node.kubelet.prepare("pod-2", [claim(1)])
    assert agent.handler.prepared == ["uid-1"]
    await node.kubelet.restart()
    await until(lambda: node.connected(agent))
    await node.kubelet.prepare("pod-3", [claim(1)])
    assert agent.handler.prepared == ["uid-1", "uid-1"]
    assert node.kubelet.plugins.choose(DRIVER) is not None
