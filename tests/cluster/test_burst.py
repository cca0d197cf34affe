"""32 pods at once on 8 GPUs: no GPU is ever in two pods, seen from the kubelet and from inside the containers.

What goes wrong in a burst and isn't ours (world.KUBELETS_OWN) is told apart, and doesn't fail the case.
"""

import itertools
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import grpc

from kubeletplugin.pb.podresources.v1 import api_pb2
from tests.cluster.harness.agent import Agent
from tests.cluster.objects import container, pod, template
from tests.cluster.world import FAILED, KUBELETS_OWN, World

PODS = 32
GPUS = 8
SOCKET = "unix:/var/lib/kubelet/pod-resources/kubelet.sock"
# /proc/uptime is the same clock in every container of a node.
WORK = (
    "g=$(ls /dev | grep -E '^nvidia[0-9]+$' | tr '\\n' ' ');"
    " echo \"start $(cut -d' ' -f1 /proc/uptime) $g\"; sleep 0.5; echo \"end $(cut -d' ' -f1 /proc/uptime) $g\""
)


@dataclass(slots=True)
class Sampler:
    """Asks the kubelet who holds what, over and over, and keeps every moment at which a device had two pods."""

    namespace: str
    looks: int = 0
    seen: set[str] = field(default_factory=set)
    doubles: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        options = [("grpc.default_authority", "localhost")]
        with grpc.insecure_channel(SOCKET, options=options) as channel:
            list_pods = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=api_pb2.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api_pb2.ListPodResourcesResponse.FromString,
            )
            while not self._stop.wait(0.1):
                self.look(list_pods(api_pb2.ListPodResourcesRequest(), timeout=5))

    def look(self, answer: api_pb2.ListPodResourcesResponse) -> None:
        self.looks += 1
        holders: dict[str, set[str]] = defaultdict(set)
        for found in answer.pod_resources:
            for part in found.containers:
                for dynamic in part.dynamic_resources:
                    for resource in dynamic.claim_resources:
                        if found.namespace == self.namespace:
                            holders[resource.device_name].add(found.name)
        self.seen |= set(holders)
        self.doubles += [f"{device}: {sorted(pods)}" for device, pods in holders.items() if len(pods) > 1]

    def stop(self) -> None:
        self._stop.set()


def intervals(log: str) -> tuple[float, float, list[str]]:
    start, end = (line.split() for line in log.splitlines()[:2])
    assert start[0] == "start" and end[0] == "end" and start[2:] == end[2:]
    return float(start[1]), float(end[1]), start[2:]


def test_no_gpu_is_ever_in_two_pods(agent: Agent, world: World) -> None:
    names = [f"p{number:02}" for number in range(PODS)]
    sampler = Sampler(world.namespace)
    thread = threading.Thread(target=sampler.run)
    thread.start()
    try:
        work = [pod(n, template_name="one", restart="Never", containers=[container(command=WORK)]) for n in names]
        world.create(template("one"), *work)

        def done() -> bool:
            found = world.kubectl.items("pods", "-n", world.namespace)
            return [item["status"]["phase"] for item in found].count("Succeeded") == PODS

        world.kubectl.wait(f"{PODS} pods done", done, seconds=240)
    finally:
        sampler.stop()
        thread.join()
    assert sampler.looks > 10 and sampler.seen, "the kubelet was asked and had something to say"
    assert sampler.doubles == []

    by_gpu: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for name in names:
        start, end, gpus = intervals(world.kubectl.run("logs", name, "-n", world.namespace))
        assert len(gpus) == 1, f"{name} sees {gpus}"
        by_gpu[gpus[0]].append((start, end, name))
    assert len(by_gpu) == GPUS
    for gpu, runs in by_gpu.items():
        runs.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(runs):
            assert end <= start, f"{gpu} was in {first} and {second} at once"

    events = [event for name in names for event in world.events(name)]
    failures = [event for event in events if event.startswith(FAILED)]
    assert [event for event in failures if not KUBELETS_OWN.search(event)] == []
