"""Every crash point, as every kind of work passes it, with everything that may befall the agent there.

A scale below 1 takes a sample, by GPUCLAIM_SEED if it is set.
"""

import os
import random
from collections.abc import Iterator

import pytest

from tests.cluster.crash_scenarios import SEED, Case, matrix, name_of, play
from tests.cluster.crashes import Rig, rigged
from tests.cluster.harness.node import RealNode
from tests.soak.conftest import SCALE, Tell


def sample() -> list[Case]:
    whole = matrix()
    count = round(len(whole) * min(float(os.environ.get(SCALE, "1")), 1.0))
    return whole if count == len(whole) else random.Random(SEED).sample(whole, max(count, 2))


@pytest.fixture(scope="module")
def rig(own_node: RealNode) -> Iterator[Rig]:
    with rigged(own_node, SEED) as made:
        yield made


@pytest.mark.parametrize("case", sample(), ids=name_of)
def test_it_finds_back(rig: Rig, case: Case, tell: Tell) -> None:
    try:
        play(rig, case)
    finally:
        tell(kills=len(rig.cuts), **rig.figures)


def test_nothing_is_left(rig: Rig, tell: Tell) -> None:
    left = rig.emptied()
    tell(crashes=rig.played, seed=SEED, leftovers=len(left))
    assert left == []
