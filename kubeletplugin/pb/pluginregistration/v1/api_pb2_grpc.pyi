from collections.abc import AsyncIterator

import grpc.aio

from kubeletplugin.pb.pluginregistration.v1 import api_pb2


class RegistrationStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    GetInfo: grpc.aio.UnaryUnaryMultiCallable[api_pb2.InfoRequest, api_pb2.PluginInfo]
    NotifyRegistrationStatus: grpc.aio.UnaryUnaryMultiCallable[api_pb2.RegistrationStatus, api_pb2.RegistrationStatusResponse]

class RegistrationServicer:
    async def GetInfo(self, request: api_pb2.InfoRequest, context: grpc.aio.ServicerContext[api_pb2.InfoRequest, api_pb2.PluginInfo]) -> api_pb2.PluginInfo: ...
    async def NotifyRegistrationStatus(self, request: api_pb2.RegistrationStatus, context: grpc.aio.ServicerContext[api_pb2.RegistrationStatus, api_pb2.RegistrationStatusResponse]) -> api_pb2.RegistrationStatusResponse: ...

def add_RegistrationServicer_to_server(
    servicer: RegistrationServicer, server: grpc.aio.Server
) -> None: ...
