"""One GPU, and pods that are deleted by force while the next one waits, or under whose name the next one is made.

The old pod's processes ignore SIGTERM and live on for seconds, while the API has forgotten them. At no moment may two
pods have processes, seen from the cgroups every few milliseconds: a pod gets its first one, the pause process, only
after its Prepare was answered.
"""

import itertools
from collections.abc import Iterator

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import container, pod, template
from tests.cluster.test_faults import STUBBORN, for_gpu
from tests.cluster.watcher import Watcher, watching
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.waking import Failures

RACES = 50


def test_never_two_at_once(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    races, failures, gaps = repeats(RACES), Failures(world), list[float]()
    world.create(template("that", for_gpu(world, "gpu-0")))
    with watching() as watcher:
        try:
            for gap in itertools.islice(_races(world, watcher, failures), races):
                gaps.append(gap)
        finally:
            tell(
                races=len(gaps),
                pods=watcher.added,
                double_holds=len(watcher.doubles),
                lost_claims=watcher.added - len(watcher.began),
                looks=watcher.looks,
                kubelets_own_faults=failures.kubelets,
                other_faults=sum(failures.messages.values()),
            )
    gaps.sort()
    tell(seconds_from_end_to_start=f"{gaps[len(gaps) // 2]:.2f} ({gaps[0]:.2f} to {gaps[-1]:.2f})")
    assert watcher.added == len(watcher.began) == races + 1
    assert watcher.doubles == []
    assert failures.messages == {}


def _races(world: World, watcher: Watcher, failures: Failures) -> Iterator[float]:
    """One after the other; each gives the seconds between the old pod's last process and the new one's first."""
    name, uid = "pod-0", _new(world, watcher, "pod-0")
    _wait_running(world, name, failures)
    for number in itertools.count(1):
        waits = number % 2 == 0
        successor = f"pod-{number}" if waits else name
        if waits:
            new = _new(world, watcher, successor)
        world.delete(f"pod/{name}", force=True, wait=False)
        if not waits:
            gone = lambda name=name, uid=uid: _uid(world, name) != uid  # noqa: E731
            world.kubectl.wait("the old object is gone", gone)
            new = _new(world, watcher, successor)
        _wait_running(world, successor, failures)
        watcher.wait(new)
        yield watcher.began[new] - watcher.ended[uid]
        watcher.pods.pop(uid)
        name, uid = successor, new


def _new(world: World, watcher: Watcher, name: str) -> str:
    world.create(pod(name, template_name="that", containers=[container(command=STUBBORN)]))
    return watcher.add(world, name)


def _uid(world: World, name: str) -> str:
    found = world.kubectl.get("pod", name, "-n", world.namespace)
    return found["metadata"]["uid"] if found else ""


def _wait_running(world: World, name: str, failures: Failures) -> None:
    def running() -> bool:
        failures.collect()
        return world.kubectl.phase(world.namespace, name) == "Running"

    world.kubectl.wait(f"{name} running", running, 60)
