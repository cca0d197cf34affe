"""One loop for all tests of a folder whose conftest imports these fixtures.

grpc.aio's poller belongs to the process and wakes every loop that ever used it, closed ones too: so the loop lives as
long as a fixture of the session's scope.
"""

from collections.abc import AsyncIterator

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    yield
