from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.podresources.v1 import api_pb2


class PodResourcesListerStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    List: grpc.aio.UnaryUnaryMultiCallable[api_pb2.ListPodResourcesRequest, api_pb2.ListPodResourcesResponse]
    GetAllocatableResources: grpc.aio.UnaryUnaryMultiCallable[api_pb2.AllocatableResourcesRequest, api_pb2.AllocatableResourcesResponse]
    Get: grpc.aio.UnaryUnaryMultiCallable[api_pb2.GetPodResourcesRequest, api_pb2.GetPodResourcesResponse]

class PodResourcesListerServicer:
    async def List(self, request: api_pb2.ListPodResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.ListPodResourcesRequest, api_pb2.ListPodResourcesResponse]) -> api_pb2.ListPodResourcesResponse: ...
    async def GetAllocatableResources(self, request: api_pb2.AllocatableResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.AllocatableResourcesRequest, api_pb2.AllocatableResourcesResponse]) -> api_pb2.AllocatableResourcesResponse: ...
    async def Get(self, request: api_pb2.GetPodResourcesRequest, context: grpc.aio.ServicerContext[api_pb2.GetPodResourcesRequest, api_pb2.GetPodResourcesResponse]) -> api_pb2.GetPodResourcesResponse: ...

def add_PodResourcesListerServicer_to_server(
    servicer: PodResourcesListerServicer, server: grpc.aio.Server
) -> None: ...
