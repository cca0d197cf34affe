"""A fake API server on a real port, and a client of it."""

from collections.abc import AsyncIterator

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeapi.transport import Timeouts


@pytest.fixture
async def server(anyio_backend: str) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(seed=1) as server:
        yield server


@pytest.fixture
async def api(server: FakeApiServer) -> AsyncIterator[RestKubeApi]:
    async with RestKubeApi(FixedConnection(Connection(server.url)), timeouts=Timeouts(total=5.0)) as api:
        yield api
