"""Short pods that log when they ran and on which GPU, and whether any two of them ever had one at once."""

import itertools
import time
from collections import defaultdict
from collections.abc import Collection, Sequence

from tests.cluster.objects import Json, container, pod
from tests.cluster.test_burst import WORK, intervals
from tests.cluster.world import World
from tests.soak.waking import Failures


def workers(names: Sequence[str]) -> list[Json]:
    """By the template ``one``."""
    return [pod(name, template_name="one", restart="Never", containers=[container(command=WORK)]) for name in names]


def wait_done(world: World, names: Collection[str], failures: Failures, seconds: float) -> set[str]:
    """Until all have succeeded; their GPUs are free then, or about to be. Returns those that haven't in time: their
    claims are lost."""
    end = time.monotonic() + seconds
    while (missing := set(names) - done(world)) and time.monotonic() < end:
        failures.collect()
        time.sleep(0.5)
    failures.collect()
    return missing


def done(world: World) -> set[str]:
    selector = ("--field-selector", "status.phase=Succeeded")
    return {item["metadata"]["name"] for item in world.kubectl.items("pods", "-n", world.namespace, *selector)}


def overlaps(world: World, names: Collection[str]) -> tuple[list[str], int]:
    """Each two pods that ran on one GPU at once, and on how many GPUs they ran at all."""
    runs: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    found = []
    for name in names:
        start, end, gpus = intervals(world.kubectl.run("logs", name, "-n", world.namespace))
        if len(gpus) != 1:
            found.append(f"{name} sees {gpus}")
        for gpu in gpus:
            runs[gpu].append((start, end, name))
    for gpu, taken in runs.items():
        taken.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(taken):
            if end > start:
                found.append(f"{gpu}: {first} and {second}")
    return found, len(runs)
