"""Fixtures that every suite shares."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only, so nothing here is tried on another backend."""
    return "asyncio"
