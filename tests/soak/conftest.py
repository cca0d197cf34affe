"""The real node of tests/cluster, a scale for the repeats, and a line of figures at each case's end."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import agent, own_node, shared_agent, world

__all__ = ["agent", "own_node", "shared_agent", "world"]

SCALE = "GPUCLAIM_SOAK_SCALE"

Repeats = Callable[[int], int]
Tell = Callable[..., None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def repeats() -> Repeats:
    """How often to do what is done so often at a scale of 1: at least twice."""
    text = os.environ.get(SCALE, "1")
    try:
        scale = float(text)
    except ValueError:
        pytest.fail(f"{SCALE}={text!r} isn't a number")

    def scaled(count: int) -> int:
        return max(round(count * scale), 2)

    return scaled


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Writes figures past pytest's capture, by name."""

    def printed(**figures: object) -> None:
        shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        with capsys.disabled():
            sys.stdout.write(f"\n  {request.node.name}: {shown}\n")

    return printed
