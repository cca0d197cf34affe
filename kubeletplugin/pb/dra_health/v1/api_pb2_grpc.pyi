from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.dra_health.v1 import api_pb2


class DRAResourceHealthStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    NodeWatchResources: grpc.aio.UnaryStreamMultiCallable[api_pb2.NodeWatchResourcesRequest, api_pb2.NodeWatchResourcesResponse]

class DRAResourceHealthServicer:
    def NodeWatchResources(self, request: api_pb2.NodeWatchResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.NodeWatchResourcesRequest, api_pb2.NodeWatchResourcesResponse]) -> AsyncIterator[api_pb2.NodeWatchResourcesResponse]: ...

def add_DRAResourceHealthServicer_to_server(
    servicer: DRAResourceHealthServicer, server: grpc.aio.Server
) -> None: ...
