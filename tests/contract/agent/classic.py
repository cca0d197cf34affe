"""What the kubelet tells of another vendor's device plugin: its device checkpoint, and pod-resources."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import grpc.aio

from kubeletplugin.pb.podresources.v1 import api_pb2 as podresources
from kubeletplugin.pb.podresources.v1 import api_pb2_grpc as podresources_grpc

RESOURCE = "nvidia.com/gpu"


class KubeletDevices(podresources_grpc.PodResourcesListerServicer):
    """Both sides of a kubelet's device manager, with pods in it by hand."""

    def __init__(self, root: Path) -> None:
        self._socket = root / "pod-resources" / "kubelet.sock"
        self._checkpoint = root / "device-plugins" / "kubelet_internal_checkpoint"
        self._pods: dict[str, podresources.PodResources] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self.lists = 0
        self.answers = asyncio.Event()
        self.answers.set()
        for folder in (self._socket.parent, self._checkpoint.parent):
            folder.mkdir(parents=True)

    async def start(self) -> None:
        self._server = grpc.aio.server()
        podresources_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        self.answers.set()
        await self._server.stop(0)

    async def List(self, request: Any, context: Any) -> podresources.ListPodResourcesResponse:
        self.lists += 1
        await self.answers.wait()
        return podresources.ListPodResourcesResponse(pod_resources=self._pods.values())

    def allocate(self, uid: str, name: str, *ids: str) -> None:
        devices = [podresources.ContainerDevices(resource_name=RESOURCE, device_ids=ids)]
        self.add(uid, name, podresources.ContainerResources(name="c", devices=devices))
        self._entries[uid] = {
            "PodUID": uid,
            "ContainerName": "c",
            "ResourceName": RESOURCE,
            "DeviceIDs": {"0": list(ids)},
            "AllocResp": None,
        }
        self.write_checkpoint()

    def add(self, uid: str, name: str, container: podresources.ContainerResources) -> None:
        """To pod-resources alone."""
        self._pods[uid] = podresources.PodResources(name=name, namespace="default", containers=[container])

    def end(self, uid: str, *, forget: bool = True) -> None:
        """Without ``forget`` the checkpoint keeps the pod, as it does until something makes the kubelet write it."""
        del self._pods[uid]
        if forget:
            del self._entries[uid]
            self.write_checkpoint()

    def write_checkpoint(self) -> None:
        """Anew, as the kubelet does at a message of the plugin's."""
        data = {"PodDeviceEntries": list(self._entries.values()), "RegisteredDevices": {RESOURCE: []}}
        self.write(json.dumps({"Data": data, "Checksum": 1}))

    def write(self, text: str) -> None:
        temporary = self._checkpoint.with_name(".temporary")
        temporary.write_text(text)
        os.replace(temporary, self._checkpoint)
