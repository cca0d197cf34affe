"""The agent is killed every few seconds under a stream of pods: all of them run, each on a GPU of its own."""

import json
import time

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import template
from tests.cluster.test_burst import GPUS
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.waking import Failures
from tests.soak.work import overlaps, wait_done, workers

KILLS = 25
PODS_A_KILL = 8
UP_SECONDS = (0.0, 0.3, 1.0, 2.5)
"""How long an agent lives from its start on, in turns: from before its first look to well after its take-over."""

DOWN_SECONDS = (0.0, 1.0)


def test_killed_in_a_loop(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    kills = repeats(KILLS)
    world.create(template("one"))
    bystander, failures, names = workers(["bystander"])[0], Failures(world), list[str]()
    bystander["spec"]["containers"][0]["command"] = ["sleep", "36000"]
    world.create(bystander)
    world.running("bystander")
    seen = world.gpu_nodes("bystander")
    for number in range(kills):
        new = [f"k{number:02}-{index}" for index in range(PODS_A_KILL)]
        world.create(*workers(new))
        names += new
        agent.kill()
        time.sleep(DOWN_SECONDS[number % len(DOWN_SECONDS)])
        agent.start(ready=False)
        time.sleep(UP_SECONDS[number % len(UP_SECONDS)])
        failures.collect()
    begun = time.monotonic()
    agent.wait_ready()
    ready = time.monotonic() - begun
    lost = wait_done(world, names, failures, seconds=180)
    shared, gpus = overlaps(world, set(names) - lost)
    tell(
        kills=kills,
        pods=len(names),
        double_holds=len(shared),
        lost_claims=len(lost),
        gpus=gpus,
        seconds_to_ready_at_the_end=f"{ready:.1f}",
        kubelets_own_faults=failures.kubelets,
        calls_that_met_no_agent=sum(failures.messages.values()),
    )
    assert shared == [] and lost == set()
    assert gpus == GPUS - 1
    assert world.gpu_nodes("bystander") == seen and world.restarts("bystander") == 0
    world.delete("pods", "--all")
    held = [entry for entry in _devices(agent) if entry.get("holders")]
    assert held == []


def _devices(agent: Agent) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(agent.status())["devices"]
    return found
