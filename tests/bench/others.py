"""Another driver, measured side by side: any that serves DRAPlugin v1 on a socket and publishes slices.

``--other NAME=SOCKET``: it is started by whoever runs the bench, against the bench's API server (the kubeconfig that
``--kubeconfig`` names is written when that server is up) and for the node ``bench-NAME``, whose slices tell which
devices there are. Nobody but the bench calls it: it needs no kubelet.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
import yaml

from gpuclaim.demo.kubelet import call_prepare, call_unprepare
from gpuclaim.demo.kubelet_plugins import Plugin
from kubeapi.client import NODES, RESOURCE_SLICES, KubeApi
from kubeapi.errors import AlreadyExists
from kubeletplugin.dra.sockets import answers
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from tests.bench.claims import NAMESPACE, Claim, Claims, Place
from tests.bench.servers import TOKEN, Server

T = TypeVar("T")

CALL_SECONDS = 45.0
WAIT_SECONDS = 180.0
SERVICE = "v1.DRAPlugin"


@dataclass(frozen=True, slots=True)
class Other:
    """As the flag names it."""

    name: str
    socket: Path

    @classmethod
    def parse(cls, text: str) -> "Other":
        name, equals, path = text.partition("=")
        if not (name and equals and Path(path).is_absolute()):
            raise ValueError(f"--other {text}: give NAME=SOCKET with the socket's absolute path")
        return cls(name, Path(path))

    @property
    def node(self) -> str:
        return f"bench-{self.name}"


def write_kubeconfig(path: Path, server: Server) -> None:
    """For the other drivers, with every right."""
    cluster = {"server": server.url, "certificate-authority": str(server.authority)}
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": cluster}],
            "users": [{"name": "bench", "user": {"token": TOKEN}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }
    )
    # Whole at once: somebody waits for it.
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.rename(path)


@dataclass(slots=True)
class OtherDriver:
    """Implements measures.Subject."""

    label: str
    claims: Claims
    pid: int
    plugin: Plugin
    _wires: dict[str, v1.Claim] = field(default_factory=dict)

    async def prepare(self, *claims: Claim) -> float:
        wires = [self._wire(claim) for claim in claims]
        begun = time.perf_counter()
        answer = await call_prepare(self.plugin, wires, CALL_SECONDS)
        milliseconds = (time.perf_counter() - begun) * 1000
        for claim in claims:
            entry = answer.claims[claim.uid]
            if entry.error or not entry.devices:
                raise RuntimeError(f"{self.label}: prepare {claim.name}: {entry.error or 'no device'}")
        return milliseconds

    async def unprepare(self, *claims: Claim) -> float:
        wires = [self._wire(claim) for claim in claims]
        begun = time.perf_counter()
        answer = await call_unprepare(self.plugin, wires, CALL_SECONDS)
        milliseconds = (time.perf_counter() - begun) * 1000
        for claim in claims:
            if answer.claims[claim.uid].error:
                raise RuntimeError(f"{self.label}: unprepare {claim.name}: {answer.claims[claim.uid].error}")
        return milliseconds

    async def empty_call(self) -> float:
        begun = time.perf_counter()
        await call_prepare(self.plugin, [], CALL_SECONDS)
        return (time.perf_counter() - begun) * 1000

    async def close(self) -> None:
        await self.plugin.close()

    @staticmethod
    def _wire(claim: Claim) -> v1.Claim:
        return v1.Claim(uid=claim.uid, namespace=NAMESPACE, name=claim.name)


async def make_nodes(api: KubeApi, others: list[Other]) -> None:
    """Before the others are told where the API server is."""
    for other in others:
        try:
            await api.create(NODES, {"metadata": {"name": other.node}})
        except AlreadyExists:
            continue


async def meet(api: KubeApi, other: Other) -> OtherDriver:
    """Waits until it listens and has published devices; an empty call stands for the kubelet's registration."""
    async with asyncio.timeout(WAIT_SECONDS):
        await _until(lambda: asyncio.to_thread(answers, other.socket))
        channel = grpc.aio.insecure_channel(f"unix:{other.socket}", options=[("grpc.default_authority", "localhost")])
        plugin = Plugin("", str(other.socket), SERVICE, channel)
        await call_prepare(plugin, [], CALL_SECONDS)
        place = await _until(lambda: _place(api, other))
    return OtherDriver(other.name, Claims(api, place), _listener(other.socket), plugin)


async def _until(look: Callable[[], Awaitable[T | None]]) -> T:
    """What the first look that sees something sees."""
    while True:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.1)


async def _place(api: KubeApi, other: Other) -> Place | None:
    """By its slices; None until they are there."""
    specs = [
        item["spec"] for item in (await api.list(RESOURCE_SLICES)).items if item["spec"].get("nodeName") == other.node
    ]
    devices = tuple(device["name"] for spec in specs for device in spec.get("devices", []))
    return Place(specs[0]["driver"], other.node, specs[0]["pool"]["name"], devices) if len(devices) > 1 else None


def _listener(path: Path) -> int:
    """The pid of the process that listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        return int(struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
