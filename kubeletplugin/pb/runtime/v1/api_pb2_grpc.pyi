from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.runtime.v1 import api_pb2


class RuntimeServiceStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Version: grpc.aio.UnaryUnaryMultiCallable[api_pb2.VersionRequest, api_pb2.VersionResponse]
    Status: grpc.aio.UnaryUnaryMultiCallable[api_pb2.StatusRequest, api_pb2.StatusResponse]

class RuntimeServiceServicer:
    async def Version(self, request: api_pb2.VersionRequest, context: grpc.aio.ServicerContext[api_pb2.VersionRequest, api_pb2.VersionResponse]) -> api_pb2.VersionResponse: ...
    async def Status(self, request: api_pb2.StatusRequest, context: grpc.aio.ServicerContext[api_pb2.StatusRequest, api_pb2.StatusResponse]) -> api_pb2.StatusResponse: ...

def add_RuntimeServiceServicer_to_server(
    servicer: RuntimeServiceServicer, server: grpc.aio.Server
) -> None: ...
