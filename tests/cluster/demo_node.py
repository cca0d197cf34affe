"""`make demo-node`: the claim route on a real kubelet, scheduler, API server and containerd on this machine.

Only the GPUs are simulated. Every step shows the command and kubectl's own output, and is checked: the exit status is
non-zero if any step is wrong.
"""

import sys
import time

import yaml

from tests.cluster.conftest import apply_classes
from tests.cluster.harness import node as real
from tests.cluster.harness.agent import Agent, install
from tests.cluster.harness.kubectl import Kubectl
from tests.cluster.objects import claim_spec, pod, request, template
from tests.cluster.world import World

GPUS = 8
CEL = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def show(kubectl: Kubectl, *arguments: str) -> str:
    print(f"$ kubectl {' '.join(arguments)}")
    output = kubectl.run(*arguments)
    print(output.rstrip(), flush=True)
    return output


def check(right: object, what: str) -> None:
    if not right:
        raise SystemExit(f"demo-node: wrong: {what}")
    print(f"  right: {what}", flush=True)


def tell(agent: Agent, world: World) -> None:
    kubectl, namespace = world.kubectl, world.namespace
    say("The node publishes its GPUs as a ResourceSlice.")
    show(kubectl, "get", "resourceslices")
    devices = world.devices()
    check(len(devices) == GPUS, f"{GPUS} GPUs are published: {', '.join(sorted(devices))}")

    say("A pod asks for a GPU with 40 GiB or more, by a ResourceClaimTemplate and CEL.")
    objects = [template("big", claim_spec(request(cel=CEL))), pod("first", template_name="big")]
    print(yaml.safe_dump_all(objects, sort_keys=False))
    world.create(*objects)
    world.running("first")
    show(kubectl, "get", "pods,resourceclaims", "-n", namespace)
    (device,) = world.devices_of(world.claim_of("first"))
    show(kubectl, "exec", "-n", namespace, "first", "--", "find", "/dev", "-name", "nvidia*")
    minor = world.attribute(device, "minor")
    check(world.gpu_nodes("first") == {f"nvidia{minor}"}, f"it sees {device} and no other GPU")

    say(f"{GPUS} pods more: one more than there are GPUs.")
    names = [f"more-{number}" for number in range(GPUS)]
    for name in names:
        # One after the other: in a burst the kubelet's own read of a claim may be refused, and costs it a minute.
        world.create(pod(name, template_name="big"))
        time.sleep(0.3)
    running = lambda: sum(world.kubectl.phase(namespace, name) == "Running" for name in names) == GPUS - 1  # noqa: E731
    kubectl.wait(f"{GPUS - 1} of them running", running, seconds=120)
    show(kubectl, "get", "pods", "-n", namespace)
    (waiting,) = (name for name in names if world.pending(name))
    print("\n".join(world.events(waiting)))
    check(any("cannot allocate all claims" in event for event in world.events(waiting)), "one is Pending, and says why")

    say("The agent is killed and started again. Pods notice nothing.")
    agent.kill()
    agent.start()
    show(kubectl, "get", "pods", "-n", namespace)
    found = kubectl.items("pods", "-n", namespace)
    restarts = [status["restartCount"] for each in found for status in each["status"].get("containerStatuses", [])]
    check(not any(restarts), "no container restarted")

    say("One pod is deleted: its GPU goes to the one that waits.")
    world.delete("pod/first")
    world.running(waiting, seconds=120)
    check(world.gpu_nodes(waiting) == {f"nvidia{minor}"}, f"{waiting} has {device} now")

    say("All pods are deleted: the GPUs are free.")
    world.delete("pods", "--all")
    print(agent.status(form="table"))
    check(not world.claims(), "no claim is left")


def main() -> int:
    reason = real.missing_requirement()
    if reason:
        print(f"demo-node: {reason}", file=sys.stderr)
        return 1
    print("Kubelet, scheduler, API server and containerd are real; the GPUs (a DGX H100) are simulated.")
    node = real.new_node()
    try:
        print("starting the node ...", flush=True)
        node.up()
        install(node.kubectl())
        apply_classes(node)
        agent = Agent(node)
        agent.start()
        world = World(node.kubectl(), "demo")
        world.begin()
        tell(agent, world)
        world.end()
        agent.stop()
        print("\nEverything was as it should be.")
        return 0
    finally:
        node.down()


if __name__ == "__main__":
    sys.exit(main())
