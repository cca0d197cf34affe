"""Every change of our ResourceSlices as it happens, by kubectl's watch: counts, and how long they were away."""

import contextlib
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.harness.processes import until

COMMAND = ("get", "resourceslices", "--watch", "--output-watch-events", "-o", "json")
SELECTOR = ("--field-selector", "spec.driver=gpu.nvidia.com")


@dataclass(slots=True)
class SliceWatch:
    """``events`` counts ADDED, MODIFIED and DELETED; ``away`` are the seconds from the last DELETED to an ADDED."""

    events: Counter[str] = field(default_factory=Counter)
    away: list[float] = field(default_factory=list)
    _deleted_at: float = 0.0

    def follow(self, process: subprocess.Popen[str]) -> None:
        decoder, buffer = json.JSONDecoder(), ""
        for line in process.stdout or ():
            buffer += line
            with contextlib.suppress(ValueError):
                event, _ = decoder.raw_decode(buffer)
                buffer = ""
                self._take(event["type"])

    def wait(self, kind: str, count: int, seconds: float = 30) -> None:
        until(f"{count} slices {kind}", seconds, lambda: self.events[kind] >= count)

    def _take(self, kind: str) -> None:
        self.events[kind] += 1
        if kind == "DELETED":
            self._deleted_at = time.monotonic()
        elif kind == "ADDED" and self._deleted_at:
            self.away.append(time.monotonic() - self._deleted_at)
            self._deleted_at = 0.0


@contextlib.contextmanager
def watching_slices(kubectl: Kubectl) -> Iterator[SliceWatch]:
    """From the slices that are there on, which count as ADDED."""
    command = [*kubectl.command, *COMMAND, *SELECTOR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        watch = SliceWatch()
        thread = threading.Thread(target=watch.follow, args=(process,))
        thread.start()
        try:
            watch.wait("ADDED", 1)
            yield watch
        finally:
            process.terminate()
            thread.join()
