"""The slice controller on a real connection to the API server of the demo; time is virtual, the network isn't."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import NODES, RESOURCE_SLICES, Json
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeapi.transport import Timeouts
from kubeletplugin.slices.compare import DroppedFieldsError
from kubeletplugin.slices.controller import SliceController
from kubeletplugin.slices.pool import PoolContent
from kubeletplugin.slices.sync import WriteVerb
from kubeletplugin.slices.validate import Problem
from tests.fakes.clock import VirtualClock

DRIVER = "gpu.nvidia.com"
NODE = "node-1"


class Log:
    """A SliceObserver."""

    def __init__(self) -> None:
        self.writes: list[WriteVerb] = []
        self.told: list[str] = []

    def slice_written(self, verb: WriteVerb) -> None:
        self.writes.append(verb)

    def not_published(self, pool: str, problem: Problem) -> None:
        self.told.append(str(problem))

    def fields_dropped(self, error: DroppedFieldsError) -> None:
        self.told.append(str(error))

    def sync_failed(self, pool: str, error: Exception, retry_in: float) -> None:
        self.told.append(str(error))

    def accepted_changed(self, accepted: bool) -> None: ...


class Agent:
    """A controller and what a test does around it."""

    def __init__(self, server: FakeApiServer, api: RestKubeApi) -> None:
        self.server = server
        self.api = api
        self.clock = VirtualClock()
        self.log = Log()
        self.controller = SliceController(api, NODE, DRIVER, self.clock, self.log)

    def want(self, *devices: Json) -> None:
        self.controller.set_pools({NODE: PoolContent(devices)})

    def published(self) -> list[list[str]]:
        """Device names per slice, in the order of the slices' names."""
        slices = sorted(self.server.objects(RESOURCE_SLICES), key=lambda item: str(item["metadata"]["name"]))
        return [[device["name"] for device in item["spec"].get("devices", ())] for item in slices]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the network work and time pass until ``condition`` holds."""
        for _ in range(400):
            if condition():
                return
            await asyncio.sleep(0.001)
            await self.clock.advance(0.1)
        raise AssertionError(f"didn't come about; told: {self.log.told}; published: {self.published()}")

    async def accepted(self) -> None:
        await self.until(lambda: self.controller.accepted)

    async def wipe_as_the_kubelet_does(self) -> None:
        """One deletecollection with the kubelet's field selector."""
        selector = f"spec.driver={DRIVER},spec.nodeName={NODE}"
        url = f"{self.server.url}/apis/resource.k8s.io/v1/resourceslices?fieldSelector={selector}"
        async with aiohttp.ClientSession() as session, session.delete(url) as response:
            assert response.status == 200


@contextlib.asynccontextmanager
async def running_agent(server: FakeApiServer) -> AsyncIterator[Agent]:
    connection = FixedConnection(Connection(server.url))
    async with RestKubeApi(connection, timeouts=Timeouts(total=5.0)) as api:
        agent = Agent(server, api)
        agent.controller.start()
        try:
            yield agent
        finally:
            await agent.controller.stop()


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(seed=1) as server:
        server.put(NODES, {"metadata": {"name": NODE}})
        yield server


@pytest.fixture
async def agent(server: FakeApiServer) -> AsyncIterator[Agent]:
    async with running_agent(server) as agent:
        yield agent
