"""Health as it is on the wire, in both versions."""

import grpc.aio
import pytest
from google.protobuf.json_format import MessageToDict

from kubeletplugin.dra.health import DeviceState
from kubeletplugin.pb.dra_health.v1 import api_pb2 as v1
from kubeletplugin.pb.dra_health.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2 as v1alpha1
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc
from tests.contract.dra.support import DRIVER, Node, status, until

pytestmark = pytest.mark.anyio

EXPECTED = {
    "devices": [
        {
            "device": {"pool_name": "node-1", "device_name": "gpu-0"},
            "health": "HEALTHY",
            "last_updated_time": "1700000000",
            "health_check_timeout_seconds": "30",
        },
        {
            "device": {"pool_name": "node-1", "device_name": "gpu-1"},
            "health": "UNHEALTHY",
            "last_updated_time": "1700000000",
            "health_check_timeout_seconds": "30",
            "message": "GPU is lost",
        },
        {
            "device": {"pool_name": "node-1", "device_name": "gpu-2"},
            "last_updated_time": "1700000000",
            "health_check_timeout_seconds": "30",
            "message": "NVML didn't answer",
        },
    ]
}


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_both_versions_say_the_same(node: Node, version: str) -> None:
    agent = await node.start("a")
    agent.source.look(
        status("gpu-0"),
        status("gpu-1", DeviceState.UNHEALTHY, "GPU is lost"),
        status("gpu-2", DeviceState.UNKNOWN, "NVML didn't answer"),
    )
    async with grpc.aio.insecure_channel(agent.paths.dra_target) as channel:
        call = (
            v1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(v1.NodeWatchResourcesRequest())
            if version == "v1"
            else v1alpha1_grpc.DRAResourceHealthStub(channel).NodeWatchResources(v1alpha1.NodeWatchResourcesRequest())
        )
        first = await anext(aiter(call))
        assert MessageToDict(first, preserving_proto_field_name=True) == EXPECTED
        call.cancel()


async def test_the_kubelet_sees_changes_and_keeps_them_over_quiet_looks(node: Node) -> None:
    agent = await node.start("a")

    def state() -> str:
        value = node.kubelet.plugins.health(DRIVER, "node-1", "gpu-0")
        return value.state if value is not None else ""

    agent.source.look(status("gpu-0"))
    await until(lambda: state() == "Healthy")
    agent.source.look(status("gpu-0", DeviceState.UNHEALTHY, "GPU is lost"))
    await until(lambda: state() == "Unhealthy")
    agent.source.look(status("gpu-0"))
    await until(lambda: state() == "Healthy")
