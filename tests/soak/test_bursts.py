"""200 pods on 8 GPUs in waves, again and again: all are served, no two share a GPU, and the agent doesn't grow."""

import threading
import time

from tests.bench.proc import usage
from tests.cluster.harness.agent import Agent
from tests.cluster.objects import template
from tests.cluster.test_burst import GPUS, Sampler
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.waking import Failures
from tests.soak.work import overlaps, wait_done, workers

ROUNDS = 5
PODS = 200
WAVE = 40
GROWTH_MB = 15.0
"""What a first burst may leave behind: allocators' arenas and threads. A leak would pass it within the rounds."""


def test_waves_of_pods(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    pods, rounds = repeats(PODS), repeats(ROUNDS)
    world.create(template("one"))
    sampler, failures = Sampler(world.namespace), Failures(world)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    begun, memory, lost, shared, gpus = time.monotonic(), list[float](), set[str](), list[str](), set[int]()
    try:
        for number in range(rounds):
            names = [f"r{number}-{index:03}" for index in range(pods)]
            for first in range(0, pods, WAVE):
                world.create(*workers(names[first : first + WAVE]))
                time.sleep(1)
            lost |= wait_done(world, names, failures, seconds=120 + 3 * pods)
            together, used = overlaps(world, set(names) - lost)
            shared += together
            gpus.add(used)
            world.delete("pods", "--all")
            memory.append(usage(agent.pid or 0).anonymous_mb)
    finally:
        sampler.stop()
        thread.join()
    seconds = time.monotonic() - begun
    tell(
        pods=pods * rounds,
        double_holds=len(sampler.doubles) + len(shared),
        lost_claims=len(lost),
        pods_a_second=f"{pods * rounds / seconds:.1f}",
        looks=sampler.looks,
        kubelets_own_faults=failures.kubelets,
        other_faults=sum(failures.messages.values()),
        anonymous_MB_after_each_round=" ".join(f"{each:.0f}" for each in memory),
    )
    assert sampler.seen and sampler.doubles == [] and shared == []
    assert lost == set() and gpus == {min(GPUS, pods)}
    assert failures.messages == {}
    assert memory[-1] - memory[0] < GROWTH_MB
