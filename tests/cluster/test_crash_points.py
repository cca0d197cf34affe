"""The agent is cut off at every crash point, and killed there; a sample of what else may befall it there.

``GPUCLAIM_SEED`` repeats a sample; each run's seed is part of its cases' names. The whole matrix is tests/soak's.
"""

import random
from collections.abc import Iterator

import pytest

from kubeletplugin import crashpoints
from tests.cluster.crash_scenarios import SEED, Case, each_point_once, matrix, name_of, play
from tests.cluster.crashes import Rig, rigged
from tests.cluster.harness.node import RealNode

SAMPLE = 4
ONCE = each_point_once()
OTHERS = random.Random(SEED).sample([case for case in matrix() if case not in ONCE], SAMPLE)


@pytest.fixture(scope="module")
def rig(own_node: RealNode) -> Iterator[Rig]:
    with rigged(own_node, SEED) as made:
        yield made


def test_each_point_is_in_a_scenario() -> None:
    assert {point for _, point, _ in ONCE} == crashpoints.POINTS.keys()


@pytest.mark.parametrize("case", ONCE, ids=name_of)
def test_killed_at(rig: Rig, case: Case) -> None:
    play(rig, case)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"seed-{SEED}-{name_of(case)}")
def test_sample(rig: Rig, case: Case) -> None:
    play(rig, case)
