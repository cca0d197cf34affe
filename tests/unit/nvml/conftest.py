"""Simulated nodes for the tests of this folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, open_node, parse_mig_flag

NodeFactory = Callable[..., SimulatedNode]


@pytest.fixture
def make_node(tmp_path: Path) -> NodeFactory:
    def make(machine: str = "dgx-h100", mig: str = "") -> SimulatedNode:
        return open_node(machine, tmp_path / machine, parse_mig_flag(mig))

    return make


@pytest.fixture
def node(make_node: NodeFactory) -> SimulatedNode:
    return make_node()


@pytest.fixture
def nvml(node: SimulatedNode) -> SimulatedNvml:
    nvml = node.nvml()
    nvml.init()
    return nvml
