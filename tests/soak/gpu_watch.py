"""Which pod's processes have which GPU's device node before them, from the processes themselves, many times a second.

It asks neither kubelet nor agent nor API server, so that it sees the same whichever of them is dead.
"""

import contextlib
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.cluster.cgroups import processes

GPU = re.compile(r"nvidia\d+")
INTERVAL_SECONDS = 0.05


@dataclass(slots=True)
class GpuWatch:
    """``doubles`` are the moments at which a GPU was before two pods; ``gpus`` all that were ever seen in one."""

    looks: int = 0
    gpus: set[str] = field(default_factory=set)
    doubles: list[str] = field(default_factory=list)
    _known: dict[int, frozenset[str]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def look(self) -> None:
        self.looks += 1
        holders: dict[str, set[str]] = defaultdict(set)
        alive = set()
        for pod, pid in processes():
            alive.add(pid)
            for gpu in self._gpus_of(pid):
                holders[gpu].add(pod)
        self._known = {pid: found for pid, found in self._known.items() if pid in alive}
        self.gpus |= set(holders)
        self.doubles += [
            f"{time.time():.2f} {gpu}: pods {sorted(pods)}" for gpu, pods in holders.items() if len(pods) > 1
        ]

    def _gpus_of(self, pid: int) -> frozenset[str]:
        """A process that has none yet may be on its way into its container, so it is asked again."""
        found = self._known.get(pid)
        if not found:
            try:
                found = frozenset(name for name in os.listdir(f"/proc/{pid}/root/dev") if GPU.fullmatch(name))
            except OSError:
                found = frozenset()
            self._known[pid] = found
        return found

    def run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.look()

    def stop(self) -> None:
        self._stop.set()


@contextlib.contextmanager
def watching_gpus() -> Iterator[GpuWatch]:
    watch = GpuWatch()
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        thread.join()
