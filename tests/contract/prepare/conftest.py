"""Everything here runs on virtual time."""

from typing import Any

import pytest

from tests.contract.prepare.virtual import VirtualLoop


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}
