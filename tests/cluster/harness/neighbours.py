"""Others on the node, a few lines each: another vendor's DRA driver and device plugin, and a device plugin for GPUs.

`python -m tests.cluster.harness.neighbours dra|plugin|gpus KUBECONFIG NODE [UUID ...]` runs one until SIGTERM. The
first two have their own names (dra.example.com, example.com/widget) and must not notice us, nor we them. The last hands
out GPUs of ours, as NVIDIA's does, under a resource of its own.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from kubeletplugin.pb.deviceplugin.v1beta1 import api_pb2 as plugin
from kubeletplugin.pb.deviceplugin.v1beta1 import api_pb2_grpc as plugin_grpc
from kubeletplugin.pb.dra.v1 import api_pb2 as dra
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as dra_grpc
from kubeletplugin.pb.pluginregistration.v1 import api_pb2 as registration
from kubeletplugin.pb.pluginregistration.v1 import api_pb2_grpc as registration_grpc

DRIVER = "dra.example.com"
RESOURCE = "example.com/widget"
GPU_RESOURCE = "nvidia.com/gpu.other"
ROOT = Path("/var/lib/kubelet")
CDI_FILE = Path("/var/run/cdi/example.com-widget.json")
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "example.com/widget",
    "devices": [{"name": "one", "containerEdits": {"env": ["WIDGET=from-dra"]}}],
}


class Neighbour(dra_grpc.DRAPluginServicer, registration_grpc.RegistrationServicer):
    def __init__(self) -> None:
        self.registered = asyncio.Event()

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        endpoint = str(ROOT / "plugins" / DRIVER / "dra.sock")
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=["v1.DRAPlugin"]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        self.registered.set()
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(self, request: Any, context: Any) -> dra.NodePrepareResourcesResponse:
        device = dra.Device(pool_name=DRIVER, device_name="one", cdi_device_ids=["example.com/widget=one"])
        answer = dra.NodePrepareResourceResponse(devices=[device])
        return dra.NodePrepareResourcesResponse(claims={claim.uid: answer for claim in request.claims})

    async def NodeUnprepareResources(self, request: Any, context: Any) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourceResponse()
        return dra.NodeUnprepareResourcesResponse(claims={claim.uid: answer for claim in request.claims})


class Plugin(plugin_grpc.DevicePluginServicer):
    def __init__(self, ids: Sequence[str]) -> None:
        self._ids = ids

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> plugin.DevicePluginOptions:
        return plugin.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[plugin.ListAndWatchResponse]:
        yield plugin.ListAndWatchResponse(devices=[plugin.Device(ID=name, health="Healthy") for name in self._ids])
        await asyncio.Event().wait()

    async def Allocate(self, request: Any, context: Any) -> plugin.AllocateResponse:
        answers = [
            plugin.ContainerAllocateResponse(envs={"WIDGET": ",".join(container.devices_ids)})
            for container in request.container_requests
        ]
        return plugin.AllocateResponse(container_responses=answers)


async def _serve(path: Path, *add: Any) -> grpc.aio.Server:
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    server = grpc.aio.server()
    for function, servicer in add:
        function(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    return server


async def _run_dra(kubeconfig: str, node: str) -> list[grpc.aio.Server]:
    neighbour = Neighbour()
    servers = [
        await _serve(ROOT / "plugins" / DRIVER / "dra.sock", (dra_grpc.add_DRAPluginServicer_to_server, neighbour)),
        await _serve(
            ROOT / "plugins_registry" / f"{DRIVER}-reg.sock",
            (registration_grpc.add_RegistrationServicer_to_server, neighbour),
        ),
    ]
    # One that came before backs off, and a pod that is scheduled by the slice meanwhile waits for a minute.
    await neighbour.registered.wait()
    piece = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{DRIVER}-{node}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": DRIVER, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "one", "attributes": {"type": {"string": "widget"}}}],
        },
    }
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "apply", "-f", "-"]
    await asyncio.to_thread(subprocess.run, command, input=json.dumps(piece).encode(), check=True)
    return servers


async def _run_plugin(resource: str, ids: Sequence[str]) -> list[grpc.aio.Server]:
    socket = ROOT / "device-plugins" / f"{resource.partition('/')[2]}.sock"
    server = await _serve(socket, (plugin_grpc.add_DevicePluginServicer_to_server, Plugin(ids)))
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{ROOT}/device-plugins/kubelet.sock", options=options) as channel:
        request = plugin.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=resource)
        await plugin_grpc.RegistrationStub(channel).Register(request)
    return [server]


async def main(kind: str, kubeconfig: str, node: str, *uuids: str) -> None:
    match kind:
        case "dra":
            servers = await _run_dra(kubeconfig, node)
        case "plugin":
            servers = await _run_plugin(RESOURCE, ["widget-0"])
        case _:
            servers = await _run_plugin(GPU_RESOURCE, uuids)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await ended.wait()
    for server in servers:
        await server.stop(0.1)


if __name__ == "__main__":
    CDI_FILE.write_text(json.dumps(CDI))
    asyncio.run(main(*sys.argv[1:]))
