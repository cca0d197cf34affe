"""The kubelet's pod-resources API (v1, List): which active pod has which devices, on either route.

Unavailable for a second, then empty for a moment after a kubelet's start; ordinary init containers are left out; ten
calls at a burst. So it is a source for sweeps, never a step of a Prepare. It names pods, not their UIDs.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc.aio

from deviceclasses import names
from kubeletplugin.classic.tokens import tokens
from kubeletplugin.pb.podresources.v1 import api_pb2 as podresources
from kubeletplugin.pb.podresources.v1 import api_pb2_grpc as podresources_grpc

log = logging.getLogger(__name__)

CALL_SECONDS = 5.0
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
_CLAIM = re.compile(
    re.escape(f"{names.CDI_VENDOR}/{names.CDI_CLAIM_CLASS}=") + r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-"
)

PodName = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Used:
    """A pod's devices of one extended resource, as tokens."""

    pod: PodName
    resource: str
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class PodDevices:
    """One answer. ``pods`` are all that are active, ``claims`` UIDs of claims with CDI ids of ours to their pods."""

    pods: frozenset[PodName] = frozenset()
    used: tuple[Used, ...] = ()
    claims: Mapping[str, frozenset[PodName]] = field(default_factory=dict)


class PodResources(Protocol):
    async def list(self) -> PodDevices | None:
        """None while there is no answer. Never raises."""


class PodResourcesSocket:
    """Of the kubelet with root directory ``kubelet_root``."""

    def __init__(self, kubelet_root: Path) -> None:
        self._path = kubelet_root / "pod-resources" / "kubelet.sock"

    async def list(self) -> PodDevices | None:
        """Connects anew: a kubelet that restarts makes another socket."""
        if not self._path.exists():
            return None
        async with grpc.aio.insecure_channel(f"unix:{self._path}", options=_OPTIONS) as channel:
            stub = podresources_grpc.PodResourcesListerStub(channel)
            try:
                answer = await stub.List(podresources.ListPodResourcesRequest(), timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                log.debug("list pod-resources: %s %s", error.code().name, error.details())
                return None
        return read(answer)


def read(answer: podresources.ListPodResourcesResponse) -> PodDevices:
    used: list[Used] = []
    claims: dict[str, frozenset[PodName]] = {}
    for pod in answer.pod_resources:
        name = (pod.namespace, pod.name)
        for container in pod.containers:
            used += [
                Used(name, entry.resource_name, devices)
                for entry in container.devices
                if (devices := tokens(entry.device_ids))
            ]
            for uid in _claims(container):
                claims[uid] = claims.get(uid, frozenset()) | {name}
    pods = frozenset((pod.namespace, pod.name) for pod in answer.pod_resources)
    return PodDevices(pods, tuple(used), claims)


def _claims(container: podresources.ContainerResources) -> set[str]:
    ids = (
        device.name
        for claim in container.dynamic_resources
        for resource in claim.claim_resources
        if resource.driver_name == names.DRIVER_NAME
        for device in resource.cdi_devices
    )
    return {match[1] for cdi_id in ids if (match := _CLAIM.match(cdi_id))}
