"""The cluster's part in the story: claims that somebody writes, pods that use them, and the scheduler's decision by
the stand-in for it.

Objects are put into the API server as the controllers of a real cluster would leave them. Importing this needs the
``cel`` extra.
"""

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from allocator.firstfit import Cluster, DeviceReport, allocate, explain
from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import PodClaim
from gpuclaim.demo.stage import NODE_NAME, Stage
from kubeapi.client import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, Json

NAMESPACE = "demo"


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))

    @property
    def reference(self) -> Json:
        return {"resource": "pods", "name": self.name, "uid": self.uid}


def claim_spec(class_name: str, expression: str = "") -> Json:
    exactly: Json = {"deviceClassName": class_name}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


class Workload:
    """Claims by name, all in one namespace."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._server = stage.server

    def write(self, name: str, spec: Json) -> Json:
        return self._server.put(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    def read(self, name: str) -> Json:
        return self._server.object(RESOURCE_CLAIMS, name, NAMESPACE)

    def delete(self, name: str) -> None:
        self._server.remove(RESOURCE_CLAIMS, name, NAMESPACE)

    def names(self) -> list[str]:
        return [claim["metadata"]["name"] for claim in self._server.objects(RESOURCE_CLAIMS, NAMESPACE)]

    def schedule(self, name: str, pods: Sequence[Pod]) -> str:
        """Allocates the claim for these pods. Returns the device; allocator's NoFitError when none is free."""
        (allocation,) = allocate([self.read(name)], self._cluster(), NODE_NAME, datetime.datetime.now(datetime.UTC))
        return self.allocate(name, pods, allocation)

    def allocate(self, name: str, pods: Sequence[Pod], allocation: Json) -> str:
        """Writes an allocation, whoever decided on it. Returns its device."""
        status = {"allocation": allocation, "reservedFor": [pod.reference for pod in pods]}
        self._server.put(RESOURCE_CLAIMS, {**self.read(name), "status": status})
        (result,) = allocation["devices"]["results"]
        return str(result["device"])

    def usable(self, name: str) -> list[DeviceReport]:
        """The devices that the claim could get now."""
        return [report for report in explain([self.read(name)], self._cluster(), NODE_NAME) if report.usable]

    async def prepare(self, name: str, pod: Pod) -> list[str]:
        """By the kubelet: the CDI ids. PodError."""
        prepared = await self._stage.kubelet.prepare(pod.uid, [self._claim(name)])
        (ids,) = prepared.values()
        return ids

    async def unprepare(self, name: str, pod: Pod) -> None:
        """By the kubelet, which calls the agent for the claim's last pod. PodError."""
        await self._stage.kubelet.unprepare(pod.uid, [self._claim(name)])

    def _claim(self, name: str) -> PodClaim:
        return PodClaim(self.read(name)["metadata"]["uid"], NAMESPACE, name, (DRIVER_NAME,))

    def _cluster(self) -> Cluster:
        server = self._server
        return Cluster(server.objects(RESOURCE_SLICES), server.objects(DEVICE_CLASSES), server.objects(RESOURCE_CLAIMS))
