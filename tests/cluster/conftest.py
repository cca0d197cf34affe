"""A node of our own per session, or any other cluster by KUBECONFIG.

With KUBECONFIG the cases run against the cluster it names, where gpuclaim and its DeviceClasses are installed already;
those that need their hands on kubelet, API server, agent or simulated GPUs skip with that reason.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import node as real
from tests.cluster.harness.agent import Agent, install
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.leftovers import wait_for_none
from tests.cluster.world import World

_numbers = itertools.count(1)
EXTERNAL = os.environ.get("KUBECONFIG", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and not item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def own_node() -> Iterator[real.RealNode]:
    """A fresh one-node cluster; skips when it can't be had."""
    if EXTERNAL:
        pytest.skip("needs a node of its own, not the cluster of KUBECONFIG")
    reason = real.missing_requirement()
    if reason:
        pytest.skip(reason)
    node = real.new_node()
    try:
        node.up()
        install(node.kubectl())
        apply_classes(node)
        yield node
    finally:
        if not os.environ.get("GPUCLAIM_KEEP_NODE"):
            node.down()


def apply_classes(node: real.RealNode) -> None:
    command = [sys.executable, "-m", "gpuclaim", "apply-classes", "--kubeconfig", str(node.layout.admin_kubeconfig)]
    subprocess.run([*node.enter, *command], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="session")
def shared_agent(own_node: real.RealNode) -> Iterator[Agent]:
    agent = Agent(own_node)
    agent.start()
    yield agent
    left = wait_for_none() if agent.pid is not None else []
    agent.stop()
    assert left == [], "the agent leaves something behind"


@pytest.fixture
def agent(shared_agent: Agent) -> Agent:
    """The agent under test, running; a case that ended it starts it again."""
    if shared_agent.pid is None:
        shared_agent.start()
    return shared_agent


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A namespace of its own for the case, and what is asked most often; cleaned up after."""
    if EXTERNAL:
        binary = shutil.which("kubectl")
        if binary is None:
            pytest.skip("no kubectl in PATH to talk to the cluster of KUBECONFIG")
        kubectl = Kubectl((binary, f"--kubeconfig={EXTERNAL}"))
    else:
        agent: Agent = request.getfixturevalue("agent")
        kubectl = agent.node.kubectl()
    made = World(kubectl, f"case-{next(_numbers)}")
    made.begin()
    failed = request.session.testsfailed
    try:
        yield made
    finally:
        if request.session.testsfailed > failed:
            print(made.describe(), file=sys.stderr)
        made.end()
