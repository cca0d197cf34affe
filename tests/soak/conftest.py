"""The real node of tests/cluster, a scale for the repeats, figures of each case, and a look for what it left behind.

Figures go into the case's properties, from which `python -m tests.soak` makes its table (report.py).
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import agent, own_node, shared_agent, world
from tests.cluster.leftovers import wait_for_none

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


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set up before the case's namespace and so looks after its end. Where no agent runs then, nobody could clean. The
    crash cases have a namespace for all of them, and tell what their own judge finds (tests.cluster.crashes)."""
    yield
    if "world" not in request.fixturenames:
        return
    shared = request.getfixturevalue("shared_agent")
    if shared.pid is None:
        shared.start()
    found = wait_for_none()
    request.node.user_properties.append(("leftovers", str(len(found))))
    assert found == [], "the case leaves something behind"


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Writes figures past pytest's capture, by name, and keeps them for the report."""

    def printed(**figures: object) -> None:
        request.node.user_properties.extend((name, str(value)) for name, value in figures.items())
        shown = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        with capsys.disabled():
            sys.stdout.write(f"\n  {request.node.name}: {shown}\n")

    return printed
