"""A node per test, in a folder short enough for a socket's path."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.dra.support import Node, running_node


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """grpc.aio's poller belongs to the process and wakes every loop that ever used it, closed ones too: so all tests
    share one loop, which lives as long as a fixture of the session's scope does."""
    yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    """pytest's own tmp_path holds the test's name, which easily makes a path longer than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder)


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    async with running_node(short_path) as running:
        yield running
