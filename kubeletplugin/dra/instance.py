"""Between the instances of one node: asking the active one to yield, relaying calls to it, noticing that one ends or
hangs.

Spoken over the instances' DRA sockets, whose paths the lease and the plugin folder tell. A relayed call uses
DRAPlugin v1 itself, with a metadata key, so that nothing but the kubelet's own contract has to be understood by both
releases.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from kubeletplugin.dra import convert
from kubeletplugin.dra.health import HealthGate
from kubeletplugin.dra.services import RELAYED_KEY
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.instance.v1 import api_pb2, api_pb2_grpc
from kubeletplugin.prepare.model import ClaimRef, PrepareResult

Context = grpc.aio.ServicerContext[Any, Any]

CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
RELAYED = ((RELAYED_KEY, "1"),)


class PeerError(Exception):
    """The other instance didn't answer, or isn't active any more; look at the lease again."""


class Peers(Protocol):
    """What one instance may ask of another, by the path of its DRA socket. Implemented by GrpcPeers."""

    async def ask_to_yield(self, socket: str, timeout: float) -> bool:
        """Whether it was active. PeerError when it doesn't answer in time."""

    async def prepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, PrepareResult]: ...

    async def unprepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, str]: ...

    async def until_gone(self, socket: str) -> bool:
        """Returns when the instance has ended its streams (True), or when it has died or doesn't answer."""

    async def responds(self, socket: str, timeout: float) -> bool:
        """False when it is there and gives no sign of life: one that is gone doesn't hang."""

    async def register_anew(self, socket: str, timeout: float) -> bool:
        """Has it become the newest; whether the kubelet has confirmed that. PeerError when it doesn't answer in time,
        or is of a release that can't."""


class GrpcPeers:
    def __init__(self, instance: str) -> None:
        self._instance = instance

    async def ask_to_yield(self, socket: str, timeout: float) -> bool:
        async with channel(socket) as peer:
            stub = api_pb2_grpc.InstanceStub(peer)
            try:
                answer = await stub.Yield(api_pb2.YieldRequest(instance=self._instance), timeout=timeout)
            except grpc.aio.AioRpcError as error:
                raise PeerError(describe(socket, error)) from error
            return answer.was_active

    async def prepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, PrepareResult]:
        request = v1.NodePrepareResourcesRequest(claims=convert.wire_claims(claims))
        async with channel(socket) as peer:
            stub = v1_grpc.DRAPluginStub(peer)
            try:
                response = await stub.NodePrepareResources(request, timeout=timeout, metadata=RELAYED)
            except grpc.aio.AioRpcError as error:
                raise PeerError(describe(socket, error)) from error
            return convert.prepare_results(response)

    async def unprepare(self, socket: str, claims: Sequence[ClaimRef], timeout: float) -> dict[str, str]:
        request = v1.NodeUnprepareResourcesRequest(claims=convert.wire_claims(claims))
        async with channel(socket) as peer:
            stub = v1_grpc.DRAPluginStub(peer)
            try:
                response = await stub.NodeUnprepareResources(request, timeout=timeout, metadata=RELAYED)
            except grpc.aio.AioRpcError as error:
                raise PeerError(describe(socket, error)) from error
            return {uid: entry.error for uid, entry in response.claims.items()}

    async def until_gone(self, socket: str) -> bool:
        async with channel(socket) as peer:
            stub = api_pb2_grpc.InstanceStub(peer)
            try:
                async for _ in stub.Watch(api_pb2.WatchRequest(instance=self._instance)):
                    continue
            except grpc.aio.AioRpcError:
                return False
            return True

    async def responds(self, socket: str, timeout: float) -> bool:
        async with channel(socket) as peer:
            stub = api_pb2_grpc.InstanceStub(peer)
            try:
                async for _ in stub.Watch(api_pb2.WatchRequest(instance=self._instance), timeout=timeout):
                    break
            except grpc.aio.AioRpcError as error:
                return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
            return True

    async def register_anew(self, socket: str, timeout: float) -> bool:
        async with channel(socket) as peer:
            stub = api_pb2_grpc.InstanceStub(peer)
            try:
                answer = await stub.RegisterAnew(api_pb2.RegisterAnewRequest(instance=self._instance), timeout=timeout)
            except grpc.aio.AioRpcError as error:
                raise PeerError(describe(socket, error)) from error
            return answer.registered


def channel(socket: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)


def describe(socket: str, error: grpc.aio.AioRpcError) -> str:
    return f"call the instance at {socket}: {error.code().name} {error.details()}"


class InstanceService(api_pb2_grpc.InstanceServicer):
    """This instance's side. ``yield_active`` stops being active and says whether it was; ``register_anew`` makes this
    instance the newest and says whether it did."""

    def __init__(
        self,
        yield_active: Callable[[str], Awaitable[bool]],
        register_anew: Callable[[str], Awaitable[bool]],
        gate: HealthGate,
    ) -> None:
        self._yield_active = yield_active
        self._register_anew = register_anew
        self._gate = gate

    async def Yield(self, request: api_pb2.YieldRequest, context: Context) -> api_pb2.YieldResponse:
        return api_pb2.YieldResponse(was_active=await self._yield_active(request.instance))

    async def RegisterAnew(
        self, request: api_pb2.RegisterAnewRequest, context: Context
    ) -> api_pb2.RegisterAnewResponse:
        return api_pb2.RegisterAnewResponse(registered=await self._register_anew(request.instance))

    async def Watch(self, request: api_pb2.WatchRequest, context: Context) -> AsyncIterator[api_pb2.WatchResponse]:
        """Ends with the health streams: to tell when those end is what it is for."""
        yield api_pb2.WatchResponse()
        while not self._gate.ended:
            await self._gate.changed(self._gate.version)


def add_to_server(server: grpc.aio.Server, service: InstanceService) -> None:
    api_pb2_grpc.add_InstanceServicer_to_server(service, server)
