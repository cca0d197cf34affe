"""Many pods at once, each on a partition of its own, and when each of them ran."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import MIG_CLASS, claim_spec, container, pod, request, template
from tests.cluster.world import World

GPUS, PARTITIONS_EACH = 8, 7
_LAYOUT = ",".join(["1g.10gb"] * PARTITIONS_EACH)


@contextlib.contextmanager
def partitions(agent: Agent) -> Iterator[None]:
    """All GPUs of a DGX H100 cut into seven partitions each; whole again after."""
    gpus, kubectl = agent.gpus(), agent.node.kubectl()

    def published(wanted: int, kind: str) -> bool:
        devices = [device["name"] for piece in agent.slices(kubectl) for device in piece["spec"].get("devices", [])]
        return sum(("-mig-" in name) == (kind == "mig") for name in devices) == len(devices) == wanted

    gpus.set_mig_layout(";".join(f"{gpu}={_LAYOUT}" for gpu in range(GPUS)))
    try:
        kubectl.wait("partitions published", lambda: published(GPUS * PARTITIONS_EACH, "mig"), 60)
        yield
    finally:
        for gpu in range(GPUS):
            gpus.replace_gpu(gpu, gpus.state().gpus[gpu].uuid)
        kubectl.wait("GPUs published whole", lambda: published(GPUS, "gpu"), 60)


@dataclass(slots=True)
class Burst:
    """``seconds`` from the request that made all pods until the API server says Running, by pod."""

    world: World
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, count: int, limit: float) -> None:
        """TimeoutError names the pods that don't run in time."""
        names = [f"p{number:02}" for number in range(count)]
        pods = [pod(name, template_name="part", containers=[container(command="exec sleep 3600")]) for name in names]
        self.world.create(template("part", claim_spec(request(device_class=MIG_CLASS))))
        columns = "custom-columns=:.metadata.name,:.status.phase"
        watch = ("get", "pods", "-n", self.world.namespace, "--watch", "--no-headers", "-o", columns)
        with subprocess.Popen([*self.world.kubectl.command, *watch], stdout=subprocess.PIPE, text=True) as process:
            reader = threading.Thread(target=self._read, args=(process, time.monotonic()), daemon=True)
            reader.start()
            try:
                self.world.create(*pods)
                self._wait(names, limit)
            finally:
                process.terminate()
                reader.join()

    def _read(self, process: "subprocess.Popen[str]", begun: float) -> None:
        for line in process.stdout or ():
            name, phase = line.split()
            if phase == "Running":
                self.seconds.setdefault(name, time.monotonic() - begun)

    def _wait(self, names: Sequence[str], limit: float) -> None:
        end = time.monotonic() + limit
        while missing := set(names) - self.seconds.keys():
            if time.monotonic() > end:
                raise TimeoutError(f"{len(missing)} of {len(names)} pods don't run: {sorted(missing)}")
            time.sleep(0.2)
