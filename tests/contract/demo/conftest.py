"""One loop for all tests, since grpc.aio's poller belongs to the process and wakes every loop that ever used it."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="demo") as folder:
        yield Path(folder)
