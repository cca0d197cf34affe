"""Upgrade after upgrade under a stream of pods, most of them with trouble: no call fails but what a kill breaks off.

The case's figures are calls seen, calls that failed, slice writes, and moments at which nobody listened.
"""

import itertools
import os
import random
import signal
from dataclasses import dataclass, field

from kubeletplugin.ledger.schema import SCHEMA
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.processes import until
from tests.cluster.objects import pod, template
from tests.cluster.test_overlap import other, registered_after
from tests.cluster.upgrades import Stream, Watched, streaming
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.slice_watch import watching_slices

ROUNDS = 24
SEED = 20261201
POINTS = ("start.served", "register.published", "register.confirmed", "takeover.acquired", "takeover.opened",
          "takeover.recovered", "takeover.activated", "prepare.committed")  # fmt: skip


@dataclass(slots=True)
class Rollout:
    """``serving`` is the version that serves; each round ends with one that does."""

    serving: Agent
    stream: Stream
    watched: Watched
    random: random.Random
    upgrades: int = 0
    kills: int = 0
    started: list[Agent] = field(default_factory=list)

    def version(self, *differences: str) -> Agent:
        made = other(self.serving, *differences, name=f"agent-{len(self.started)}")
        self.started.append(made)
        return made

    def upgrade(self, *differences: str) -> None:
        new = self.version(*differences)
        new.start()
        self._leave(self.serving)
        self.serving = new
        self.upgrades += 1

    def newer_ledger(self) -> None:
        """And the next upgrade is a roll-back to an older schema."""
        self.upgrade(f"schema={SCHEMA + 1}")

    def crash_loop(self) -> None:
        new = self.version(f"dies-at={self.random.choice(POINTS)}")
        for _ in range(2):
            new.start(ready=False)
            until("the new version dies", 60, lambda: new.pid is None)
            new.stop()  # clears away what is left of it
            self.kills += 1
        self.serving.wait_ready()

    def killed(self) -> None:
        new = self.version()
        new.start()
        new.kill()
        self.kills += 1
        self.serving.wait_ready()

    def stopped_and_woken(self) -> None:
        new = self.version()
        new.start()
        assert new.pid is not None
        os.kill(new.pid, signal.SIGSTOP)
        self.serving.wait_ready(60)
        until("the kubelet calls who took over", 30, lambda: registered_after(self.serving, new))
        os.kill(new.pid, signal.SIGCONT)
        self.stream.go_on(1)
        self._leave(new)

    def withdrawn(self) -> None:
        """The newest one ends, the older one goes on: what `kubectl rollout undo` does early."""
        new = self.version()
        new.start()
        self.stream.go_on(1)
        self._leave(new)
        self.serving.wait_ready()

    def wont_leave(self) -> None:
        self.upgrade("wont-leave")
        stuck = self.serving
        self.serving = new = self.version()
        new.start()
        self.upgrades += 1
        self.watched.count(stuck)
        stuck.kill()

    def _leave(self, agent: Agent) -> None:
        self.watched.count(agent)
        agent.stop()


def test_upgrade_after_upgrade(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    rounds = repeats(ROUNDS)
    world.create(template("one"), pod("bystander", template_name="one"))
    world.running("bystander")
    gpus = world.gpu_nodes("bystander")
    with watching_slices(world.kubectl) as slices, streaming(world, agent) as (stream, watched):
        before = slices.events.total()
        rollout = Rollout(agent, stream, watched, random.Random(SEED))
        kinds = itertools.cycle(
            (rollout.upgrade, rollout.newer_ledger, rollout.crash_loop, rollout.upgrade, rollout.stopped_and_woken,
             rollout.withdrawn, rollout.killed, rollout.wont_leave)
        )  # fmt: skip
        try:
            for kind in itertools.islice(kinds, rounds):
                kind()
                stream.go_on()
        finally:
            last = rollout.serving
            if last is not agent:
                agent.start()
            for one in rollout.started:
                if one.pid is not None:
                    watched.count(one)
                    one.stop()
        stream.go_on()
    watched.count(agent)
    broken = watched.broken
    tell(
        upgrades=rollout.upgrades,
        kills=rollout.kills,
        pods=stream.done,
        calls_seen=watched.answered + watched.refused + len(broken),
        calls_refused=watched.refused,
        calls_broken_off_by_kills=len(broken),
        slice_writes=slices.events.total() - before,
        gaps=len(watched.gaps),
        samples=watched.samples,
    )
    assert slices.events.total() == before
    assert watched.gaps == []
    assert watched.refused == 0
    assert len(broken) <= rollout.kills, broken
    assert world.gpu_nodes("bystander") == gpus and world.restarts("bystander") == 0
