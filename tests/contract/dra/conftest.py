"""A node per test, in a folder short enough for a socket's path."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.dra.support import Node, running_node
from tests.contract.one_loop import anyio_backend, one_event_loop

__all__ = ["anyio_backend", "one_event_loop"]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """pytest's own tmp_path holds the test's name, which easily makes a path longer than 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra") as folder:
        yield Path(folder)


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    async with running_node(short_path) as running:
        yield running
