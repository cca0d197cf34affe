"""A stream of pods, created and deleted for minutes, while agent, kubelet and containerd are killed in turns.

At any time there are as many as the stream has places for: some run to their end, some are deleted as they wait, start
or run, one in three of those by force. No GPU may ever be before two pods, and at the end each GPU can be claimed.
"""

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import container, pod, template
from tests.cluster.test_burst import GPUS
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.gpu_watch import watching_gpus
from tests.soak.waking import Failures

PLACES = 60
SECONDS = 300
KILL_EVERY_SECONDS = 8.0
DELETED_EACH_TURN = 2
SETTLE_SECONDS = 180.0
SEED = 20260801
LONG = "trap 'exit 0' TERM; sleep 20 & wait $!"
SHORT = "sleep 1"


@dataclass(slots=True)
class Stream:
    world: World
    random: random.Random
    created: int = 0
    ended: int = 0
    forced: int = 0
    _going: set[str] = field(default_factory=set)

    def turn(self) -> None:
        """Removes what is done, deletes a few others, and fills the places again."""
        found = _phases(self.world)
        self._going &= set(found)
        done = {name for name, phase in found.items() if phase in ("Succeeded", "Failed")}
        rest = sorted(set(found) - done - self._going)
        chosen = set(self.random.sample(rest, min(DELETED_EACH_TURN, len(rest))))
        forced = {name for name in chosen if self.random.random() < 1 / 3}
        ended = done - self._going
        self._delete(ended | chosen - forced)
        self._delete(forced, force=True)
        self.ended += len(ended)
        self.forced += len(forced)
        self._fill(PLACES - len(found) + len(forced))

    def _delete(self, names: set[str], *, force: bool = False) -> None:
        if names:
            self.world.delete(*(f"pod/{name}" for name in sorted(names)), force=force, wait=False)
            self._going |= names

    def _fill(self, count: int) -> None:
        names = [f"s{number:04}" for number in range(self.created, self.created + max(count, 0))]
        self.created += len(names)
        scripts = itertools.cycle((SHORT, SHORT, LONG))
        if names:
            self.world.create(
                *(
                    pod(name, template_name="one", restart="OnFailure", containers=[container(command=next(scripts))])
                    for name in names
                )
            )


def kill_agent(agent: Agent) -> None:
    agent.kill()
    agent.start(ready=False)


def kill_kubelet(agent: Agent) -> None:
    agent.node.supervisor.stop("kubelet", hard=True)
    agent.node.start_kubelet()


def kill_containerd(agent: Agent) -> None:
    agent.node.supervisor.stop("containerd", hard=True)
    agent.node.start_containerd()


KILLS: tuple[Callable[[Agent], None], ...] = (kill_agent, kill_kubelet, kill_agent, kill_containerd)


def test_kills_under_a_stream_of_pods(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    seconds, failures = max(repeats(SECONDS), 20), Failures(world)
    stream, kills = Stream(world, random.Random(SEED)), 0
    world.create(template("one"))
    with watching_gpus() as watch:
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            stream.turn()
            if passed > (kills + 1) * KILL_EVERY_SECONDS:
                KILLS[kills % len(KILLS)](agent)
                kills += 1
            failures.collect()
            time.sleep(0.5)
        agent.wait_ready(60)
        stuck = _drained(world, failures)
        unusable = _unusable(world, failures) if not stuck else []
    tell(
        pods=stream.created,
        kills=kills,
        double_holds=len(watch.doubles),
        lost_claims=len(stuck) + len(unusable),
        forced_deletes=stream.forced,
        ran_to_their_end=stream.ended,
        looks=watch.looks,
        kubelets_own_faults=failures.kubelets,
        calls_that_met_no_agent=sum(failures.messages.values()),
    )
    assert watch.doubles == []
    assert stuck == [] and unusable == []
    assert len(watch.gpus) == GPUS, "the stream used them all"


def _drained(world: World, failures: Failures) -> list[str]:
    """Deletes what still waits for a GPU, lets the others end; who is there after that is stuck."""
    end = time.monotonic() + SETTLE_SECONDS
    world.kubectl.run("delete", "pods", "--all", "-n", world.namespace, "--wait=false")
    while (left := _phases(world)) and time.monotonic() < end:
        failures.collect()
        time.sleep(1)
    return [f"{name}: {phase}" for name, phase in left.items()]


def _unusable(world: World, failures: Failures) -> list[str]:
    """As many pods as GPUs, at once: who doesn't run has a GPU that is lost."""
    names = [f"last-{number}" for number in range(GPUS)]
    world.create(*(pod(name, template_name="one") for name in names))
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        failures.collect()
        phases = _phases(world)
        waiting = [name for name in names if phases[name] != "Running"]
        if not waiting:
            break
        time.sleep(1)
    return waiting


def _phases(world: World) -> dict[str, str]:
    found = world.kubectl.items("pods", "-n", world.namespace)
    return {item["metadata"]["name"]: item["status"]["phase"] for item in found}
