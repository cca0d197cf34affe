"""Two versions of the agent on one node, under a stream of pods: no call fails, no slice is written, no pod notices.

tests/contract/agent/test_upgrades.py has the same stories and more, in front of a kubelet of ours.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubeletplugin.ledger.schema import SCHEMA
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.processes import until
from tests.cluster.objects import pod, template
from tests.cluster.upgrades import Stream, Watched, streaming
from tests.cluster.world import World
from tests.soak.slice_watch import watching_slices

NEWER = (f"schema={SCHEMA + 1}",)


def other(agent: Agent, *version: str, name: str = "agent-new") -> Agent:
    entry = ("tests.versions", *version, "--") if version else agent.entry
    return Agent(agent.node, name=name, entry=entry)


@contextmanager
def undisturbed(world: World, agent: Agent, *others: Agent, killed: int = 0) -> Iterator[tuple[Stream, Watched]]:
    """At the end the shared agent is the only one. ``killed``: how many processes are; each breaks off what is open."""
    world.create(template("one"), pod("bystander", template_name="one"))
    world.running("bystander")
    gpus = world.gpu_nodes("bystander")
    try:
        with watching_slices(world.kubectl) as slices, streaming(world, agent) as (stream, watched):
            before = slices.events.total()
            yield stream, watched
        watched.count(agent)
    finally:
        for one in others:
            one.stop()
        if agent.pid is None:
            agent.start()
    assert slices.events.total() == before, "0 slice writes"
    assert watched.gaps == [] and watched.samples > 20
    assert (watched.refused, len(watched.broken)) <= (0, killed), watched.broken
    assert watched.answered > 0 and stream.done > 0
    assert world.gpu_nodes("bystander") == gpus and world.restarts("bystander") == 0


def test_an_upgrade_and_a_roll_back(agent: Agent, world: World) -> None:
    """The new version's ledger has more in it than the old one knows."""
    new = other(agent, *NEWER)
    with undisturbed(world, agent, new) as (stream, watched):
        new.start()
        stream.go_on()
        watched.count(agent)
        agent.stop()
        stream.go_on()
        agent.start()
        stream.go_on()
        watched.count(new)
        new.stop()
        stream.go_on()


def test_a_stopped_agent_is_passed_over_and_woken(agent: Agent, world: World) -> None:
    """Calls that it was asked while it was stopped are served when it wakes."""
    new = other(agent)
    with undisturbed(world, agent, new) as (stream, watched):
        new.start()
        stream.go_on(1)
        assert new.pid is not None
        os.kill(new.pid, signal.SIGSTOP)
        agent.wait_ready()
        until("the kubelet calls who took over", 20, lambda: registered_after(agent, new))
        os.kill(new.pid, signal.SIGCONT)
        stream.go_on()
        watched.count(new)
        new.stop()


def registered_after(agent: Agent, other: Agent) -> bool:
    registry = Path("/var/lib/kubelet/plugins_registry")

    def made(one: Agent) -> int:
        return (registry / f"gpu.nvidia.com-{one.uid}-reg.sock").stat().st_mtime_ns

    return made(agent) > made(other)


@pytest.mark.soak
def test_a_version_that_dies_as_it_takes_over_again_and_again(agent: Agent, world: World) -> None:
    new = other(agent, "dies-at=takeover.acquired")
    with undisturbed(world, agent, new, killed=3) as (stream, _):
        for _ in range(3):
            new.start(ready=False)
            until("the new version dies", 60, lambda: new.pid is None)
            new.stop()  # clears away what is left of it
            stream.go_on(1)
        agent.wait_ready()
