"""One loop for all tests, and folders short enough for a socket's path."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.one_loop import anyio_backend, one_event_loop

__all__ = ["anyio_backend", "one_event_loop"]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Short enough for a socket's path."""
    with tempfile.TemporaryDirectory(prefix="demo") as folder:
        yield Path(folder)
