"""Fixtures that every suite shares."""

import pytest
from hypothesis import HealthCheck, settings

# A machine that is busy is no failure.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def anyio_backend() -> str:
    """grpc.aio runs on asyncio only, so nothing here is tried on another backend."""
    return "asyncio"
