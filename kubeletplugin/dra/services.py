"""DRAPlugin v1 and v1beta1: what the kubelet calls, in front of a ClaimHandler.

Two handlers stand behind each service. ``fresh`` serves what comes from the kubelet. ``relayed`` serves what another
instance of this node passed on while it yields, told apart by a metadata key; such a call never makes this instance
ask for the lease, or two instances with a call open at each would take it from each other for ever (R_YIELD).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from kubeletplugin.dra import convert
from kubeletplugin.dra.calls import CallRunner
from kubeletplugin.errors import NotActiveError
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.dra.v1beta1 import api_pb2 as v1beta1
from kubeletplugin.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from kubeletplugin.prepare.model import ClaimHandler, ClaimRef, PrepareResult

T = TypeVar("T")

RELAYED_KEY = "gpuclaim-relayed"
NOT_ACTIVE = "not the active instance"

Context = grpc.aio.ServicerContext[Any, Any]
Work = Callable[[Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]]


class ClaimCalls:
    """The two calls, free of version."""

    def __init__(self, runner: CallRunner, fresh: ClaimHandler, relayed: ClaimHandler) -> None:
        self._runner = runner
        self._fresh = fresh
        self._relayed = relayed

    async def prepare(self, claims: Sequence[ClaimRef], context: Context) -> dict[str, PrepareResult]:
        work = self._handler(context).prepare
        return await self._run(work, claims, context, lambda error: PrepareResult(error=error))

    async def unprepare(self, claims: Sequence[ClaimRef], context: Context) -> dict[str, str]:
        return await self._run(self._handler(context).unprepare, claims, context, str)

    async def _run(
        self, work: Work[T], claims: Sequence[ClaimRef], context: Context, failure: Callable[[str], T]
    ) -> dict[str, T]:
        try:
            return await self._runner.run(work, claims, context.time_remaining(), failure)
        except NotActiveError:
            # Only of a relayed call: the handler of fresh ones looks for the active instance itself.
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, NOT_ACTIVE)
            raise

    def _handler(self, context: Context) -> ClaimHandler:
        return self._relayed if is_relayed(context) else self._fresh


def is_relayed(context: Context) -> bool:
    return any(key == RELAYED_KEY for key, _ in context.invocation_metadata() or ())


class DraPluginV1(v1_grpc.DRAPluginServicer):
    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(
        self, request: v1.NodePrepareResourcesRequest, context: Context
    ) -> v1.NodePrepareResourcesResponse:
        results = await self._calls.prepare(convert.claim_refs(request.claims), context)
        return convert.prepare_response_v1(results)

    async def NodeUnprepareResources(
        self, request: v1.NodeUnprepareResourcesRequest, context: Context
    ) -> v1.NodeUnprepareResourcesResponse:
        errors = await self._calls.unprepare(convert.claim_refs(request.claims), context)
        claims = {uid: v1.NodeUnprepareResourceResponse(error=error) for uid, error in errors.items()}
        return v1.NodeUnprepareResourcesResponse(claims=claims)


class DraPluginV1Beta1(v1beta1_grpc.DRAPluginServicer):
    def __init__(self, calls: ClaimCalls) -> None:
        self._calls = calls

    async def NodePrepareResources(
        self, request: v1beta1.NodePrepareResourcesRequest, context: Context
    ) -> v1beta1.NodePrepareResourcesResponse:
        results = await self._calls.prepare(convert.claim_refs(request.claims), context)
        return convert.prepare_response_v1beta1(results)

    async def NodeUnprepareResources(
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: Context
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        errors = await self._calls.unprepare(convert.claim_refs(request.claims), context)
        claims = {uid: v1beta1.NodeUnprepareResourceResponse(error=error) for uid, error in errors.items()}
        return v1beta1.NodeUnprepareResourcesResponse(claims=claims)


def add_to_server(server: grpc.aio.Server, calls: ClaimCalls) -> None:
    v1_grpc.add_DRAPluginServicer_to_server(DraPluginV1(calls), server)
    v1beta1_grpc.add_DRAPluginServicer_to_server(DraPluginV1Beta1(calls), server)
