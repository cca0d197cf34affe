"""The agent is cut off at every crash point in a chain of its kind; a sample of all that may befall it at one.

``GPUCLAIM_SEED`` repeats a sample; each run's seed is part of its cases' names. The whole matrix, in which each case
has a judge of its own, is tests/soak's.
"""

import random
from collections.abc import Iterator

import pytest

from kubeletplugin import crashpoints
from tests.cluster.crash_chains import CHAINS, Chain, play_chain
from tests.cluster.crash_scenarios import SEED, Case, matrix, name_of, play
from tests.cluster.crashes import Rig, rigged
from tests.cluster.harness.node import RealNode

SAMPLE = 4
OTHERS = random.Random(SEED).sample(matrix(), SAMPLE)


@pytest.fixture(scope="module")
def rig(own_node: RealNode) -> Iterator[Rig]:
    with rigged(own_node, SEED) as made:
        yield made


def test_each_point_is_in_a_chain_and_in_the_matrix() -> None:
    assert sorted(point for chain in CHAINS for point in chain.points) == sorted(crashpoints.POINTS)
    assert {point for _, point, _ in matrix()} == crashpoints.POINTS.keys()


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.act.__name__)
def test_cut_off_in_a_chain(rig: Rig, chain: Chain) -> None:
    play_chain(rig, chain)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"seed-{SEED}-{name_of(case)}")
def test_sample(rig: Rig, case: Case) -> None:
    play(rig, case)
