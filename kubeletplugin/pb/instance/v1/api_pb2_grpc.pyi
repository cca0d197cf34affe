from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.instance.v1 import api_pb2


class InstanceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Yield: grpc.aio.UnaryUnaryMultiCallable[api_pb2.YieldRequest, api_pb2.YieldResponse]
    Watch: grpc.aio.UnaryStreamMultiCallable[api_pb2.WatchRequest, api_pb2.WatchResponse]
    RegisterAnew: grpc.aio.UnaryUnaryMultiCallable[api_pb2.RegisterAnewRequest, api_pb2.RegisterAnewResponse]

class InstanceServicer:
    async def Yield(self, request: api_pb2.YieldRequest, context: grpc.aio.ServicerContext[api_pb2.YieldRequest, api_pb2.YieldResponse]) -> api_pb2.YieldResponse: ...
    def Watch(self, request: api_pb2.WatchRequest, context: grpc.aio.ServicerContext[api_pb2.WatchRequest, api_pb2.WatchResponse]) -> AsyncIterator[api_pb2.WatchResponse]: ...
    async def RegisterAnew(self, request: api_pb2.RegisterAnewRequest, context: grpc.aio.ServicerContext[api_pb2.RegisterAnewRequest, api_pb2.RegisterAnewResponse]) -> api_pb2.RegisterAnewResponse: ...

def add_InstanceServicer_to_server(
    servicer: InstanceServicer, server: grpc.aio.Server
) -> None: ...
