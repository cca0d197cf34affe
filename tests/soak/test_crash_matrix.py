"""Every crash point, as every kind of work passes it, with everything that may befall the agent there."""

from collections.abc import Iterator

import pytest

from tests.cluster.crash_scenarios import Case, matrix, name_of, play
from tests.cluster.crashes import Rig, rigged
from tests.cluster.harness.node import RealNode


@pytest.fixture(scope="module")
def rig(own_node: RealNode) -> Iterator[Rig]:
    with rigged(own_node, seed=0) as made:
        yield made


@pytest.mark.parametrize("case", matrix(), ids=name_of)
def test_it_finds_back(rig: Rig, case: Case) -> None:
    play(rig, case)
