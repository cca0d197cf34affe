"""One loop for all tests, since grpc.aio's poller belongs to the process and wakes every loop that ever used it."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuclaim.demo.stage import temporary_folder
from tests.contract.agent.node import AgentNode, remove


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    yield


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """INFO of the agent, so that tests see what an operator sees."""
    with caplog.at_level(logging.INFO):
        yield


@pytest.fixture
async def node(anyio_backend: str) -> AsyncIterator[AgentNode]:
    """A kubelet and an API server that run, no agent yet."""
    folder = temporary_folder()
    node = AgentNode(folder)
    try:
        await node.server.start()
        node.write_kubeconfig()
        await node.kubelet.start()
        yield node
    finally:
        await node.stop()
        remove(folder)
