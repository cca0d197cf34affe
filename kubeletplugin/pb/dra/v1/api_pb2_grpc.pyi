from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.dra.v1 import api_pb2


class DRAPluginStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    NodePrepareResources: grpc.aio.UnaryUnaryMultiCallable[api_pb2.NodePrepareResourcesRequest, api_pb2.NodePrepareResourcesResponse]
    NodeUnprepareResources: grpc.aio.UnaryUnaryMultiCallable[api_pb2.NodeUnprepareResourcesRequest, api_pb2.NodeUnprepareResourcesResponse]

class DRAPluginServicer:
    async def NodePrepareResources(self, request: api_pb2.NodePrepareResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.NodePrepareResourcesRequest, api_pb2.NodePrepareResourcesResponse]) -> api_pb2.NodePrepareResourcesResponse: ...
    async def NodeUnprepareResources(self, request: api_pb2.NodeUnprepareResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.NodeUnprepareResourcesRequest, api_pb2.NodeUnprepareResourcesResponse]) -> api_pb2.NodeUnprepareResourcesResponse: ...

def add_DRAPluginServicer_to_server(
    servicer: DRAPluginServicer, server: grpc.aio.Server
) -> None: ...
