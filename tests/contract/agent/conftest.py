"""A kubelet and an API server for each test, and one loop for all."""

import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuclaim.demo.stage import temporary_folder
from tests.contract.agent.node import AgentNode, remove
from tests.contract.one_loop import anyio_backend, one_event_loop

__all__ = ["anyio_backend", "one_event_loop"]


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
