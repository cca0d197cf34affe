"""Looks, every few milliseconds, which of some pods have processes: no two of them may, at any moment.

A pod gets its first process, the pause process, only after its Prepare was answered; and its processes may live on
when the API has long forgotten it. So pods that must not share a GPU must not be seen alive together.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.cluster.cgroups import processes_of
from tests.cluster.harness.processes import until
from tests.cluster.world import World


@dataclass(slots=True)
class Watcher:
    """``pods`` by UID; ``began`` and ``ended`` have when each was first and last seen to have processes (monotonic).
    ``added`` counts all pods that it ever had."""

    pods: dict[str, str] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    doubles: list[str] = field(default_factory=list)
    looks: int = 0
    added: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(0.02):
            now = time.monotonic()
            alive = {uid: found for uid in list(self.pods) if (found := processes_of(uid))}
            for uid in alive:
                self.began.setdefault(uid, now)
                self.ended[uid] = now
            if len(alive) > 1:
                self.doubles.append(str({self.pods.get(uid, uid): sorted(pids) for uid, pids in alive.items()}))
            self.looks += 1

    def add(self, world: World, name: str) -> str:
        uid: str = world.kubectl.json("get", "pod", name, "-n", world.namespace)["metadata"]["uid"]
        self.pods[uid] = name
        self.added += 1
        return uid

    def wait(self, uid: str) -> None:
        until("the new pod's processes are seen", 5, lambda: uid in self.began)

    def forget(self, *, but: str = "") -> None:
        """All pods but the one of this UID."""
        self.pods = {uid: name for uid, name in self.pods.items() if uid == but}

    def stop(self) -> None:
        self._stop.set()


@contextlib.contextmanager
def watching() -> Iterator[Watcher]:
    watcher = Watcher()
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        yield watcher
    finally:
        watcher.stop()
        thread.join()
