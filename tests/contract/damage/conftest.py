"""A kubelet and an API server for each test, and one loop for all."""

from collections.abc import AsyncIterator

import pytest

from gpuclaim.demo.stage import temporary_folder
from tests.contract.agent.node import remove
from tests.contract.damage.node import DamagedNode
from tests.contract.one_loop import anyio_backend, one_event_loop

__all__ = ["anyio_backend", "one_event_loop"]


@pytest.fixture
async def node(anyio_backend: str) -> AsyncIterator[DamagedNode]:
    """A kubelet and an API server that run, no agent yet."""
    folder = temporary_folder()
    node = DamagedNode(folder)
    try:
        await node.server.start()
        node.write_kubeconfig()
        await node.kubelet.start()
        yield node
    finally:
        await node.stop()
        for log in sorted(folder.glob("*.log")):
            print(log.name, log.read_text(), sep="\n")  # noqa: T201
        node.unmount()
        remove(folder)
