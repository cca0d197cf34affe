"""What an upgrade must not disturb, watched from outside: the kubelet's calls, the DRA sockets, pods that come and go.

A call that fails shows in the kubelet's log (and, of a Prepare, as an event), one that is answered in the metrics of
the instance that the kubelet called.
"""

import contextlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.app.ends.control import socket_path
from kubeletplugin.dra.sockets import answers
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.kubectl import KubectlError
from tests.cluster.objects import container, pod
from tests.cluster.world import DRIVER, KUBELETS_OWN, World

PLUGIN = Path("/var/lib/kubelet/plugins") / DRIVER
SAMPLE_SECONDS = 0.05
FAILED_CALL = re.compile(r"Node(?:Unp|P)repareResources|[Uu]nprepare (?:dynamic )?[Rr]esources")
COUNTED = re.compile(r"^(nvidia_dra_requests_total|nvidia_dra_node_(?:un)?prepare_errors_total)\{[^}]*\} (\d+)", re.M)


def request(path: Path, target: str) -> str:
    """The body that an agent's status socket answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.0\r\nHost: agent\r\n\r\n".encode())
        data = b"".join(iter(lambda: client.recv(65536), b""))
    return data.partition(b"\r\n\r\n")[2].decode()


@dataclass(slots=True)
class Watched:
    """``gaps`` are moments at which nobody listened on any DRA socket; ``broken`` the kubelet's lines of failed calls;
    ``answered`` and ``refused`` count claims in calls, as the agents that were asked have counted them."""

    agent: Agent
    samples: int = 0
    gaps: list[float] = field(default_factory=list)
    answered: int = 0
    refused: int = 0
    _offset: int = 0

    def __post_init__(self) -> None:
        self._offset = self._log.stat().st_size

    @property
    def _log(self) -> Path:
        return self.agent.node.supervisor.log("kubelet")

    def sample(self, stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_SECONDS):
            self.samples += 1
            if not any(answers(path) for path in PLUGIN.glob("dra-*.sock")):
                self.gaps.append(time.monotonic())

    def count(self, agent: Agent) -> None:
        """To be called just before an instance ends: its counters go with it."""
        found: Counter[str] = Counter()
        text = request(socket_path(PLUGIN, DRIVER, agent.uid), "/metrics")
        for name, value in COUNTED.findall(text):
            found[name] += int(value)
        assert found, f"no counters of calls in {text[:2000]}"
        self.answered += found.pop("nvidia_dra_requests_total")
        self.refused += found.total()

    @property
    def broken(self) -> list[str]:
        with self._log.open(errors="replace") as log:
            log.seek(self._offset)
            lines = [line for line in log if line.startswith("E") and FAILED_CALL.search(line)]
        return [line for line in lines if not KUBELETS_OWN.search(line)]


@dataclass(slots=True)
class Stream:
    """Pods that run for a moment each, made and removed until ``stop``."""

    world: World
    created: int = 0
    done: int = 0
    error: str = ""

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.turn()
                stop.wait(0.7)
        except KubectlError as error:
            self.error = str(error)

    def turn(self) -> None:
        found = {name: phase for name, phase in self.phases().items() if name.startswith("s-")}
        ended = [name for name, phase in found.items() if phase == "Succeeded"]
        if ended:
            self.world.delete(*(f"pod/{name}" for name in ended), wait=False)
            self.done += len(ended)
        if len(found) - len(ended) < 6:
            self.world.create(*(self._pod() for _ in range(2)))

    def _pod(self) -> dict[str, object]:
        self.created += 1
        work = container(command="sleep 0.3")
        return pod(f"s-{self.created:04}", template_name="one", restart="Never", containers=[work])

    def phases(self) -> dict[str, str]:
        found = self.world.kubectl.items("pods", "-n", self.world.namespace)
        return {item["metadata"]["name"]: item["status"]["phase"] for item in found}

    def go_on(self, count: int = 2, seconds: float = 60) -> None:
        """Returns when pods that were made from now on have run."""
        before = self.done + len(self.phases())
        self.world.kubectl.wait(f"{count} more pods", lambda: self.error or self.done >= before + count, seconds)


@contextlib.contextmanager
def streaming(world: World, agent: Agent) -> Iterator[tuple[Stream, Watched]]:
    """Pods come and go, and are watched, until all that were made have run."""
    stream, watched, stop, last = Stream(world), Watched(agent), threading.Event(), threading.Event()
    threads = [
        threading.Thread(target=stream.run, args=(stop,)),
        threading.Thread(target=watched.sample, args=(last,)),
    ]
    for thread in threads:
        thread.start()
    try:
        stream.go_on(1)
        yield stream, watched
        stop.set()
        threads[0].join()
        assert stream.error == ""
        world.kubectl.wait("the stream's last pods", lambda: drained(stream), 120)
    finally:
        stop.set()
        last.set()
        for thread in threads:
            thread.join()


def drained(stream: Stream) -> bool:
    left = {name: phase for name, phase in stream.phases().items() if name.startswith("s-")}
    return set(left.values()) <= {"Succeeded"}
