"""Forced deletes, deletes in the middle of a Prepare, agent and kubelet restarts, an API server that is away."""

import time
from pathlib import Path

from tests.cluster.cgroups import processes_of
from tests.cluster.harness.agent import Agent
from tests.cluster.objects import claim, claim_spec, container, pod, request, template
from tests.cluster.world import World

STUBBORN = "trap '' TERM; while :; do sleep 0.2; done"
UUID = 'device.attributes["gpu.nvidia.com"].uuid'


def for_gpu(world: World, device: str) -> dict[str, object]:
    """A claim that only this GPU can satisfy."""
    return claim_spec(request(cel=f'{UUID} == "{world.attribute(device, "uuid")}"'))


def test_a_forced_delete_never_runs_two_on_one_gpu(agent: Agent, world: World) -> None:
    spec = for_gpu(world, "gpu-0")
    world.create(template("that", spec), pod("old", template_name="that", containers=[container(command=STUBBORN)]))
    world.running("old")
    uid = world.kubectl.json("get", "pod", "old", "-n", world.namespace)["metadata"]["uid"]
    assert processes_of(uid)
    world.create(pod("new", template_name="that", containers=[container(command="cat /proc/uptime; sleep 3600")]))
    world.kubectl.wait("the second pod waits for the GPU", lambda: world.events("new"))
    world.delete("pod/old", force=True, wait=False)
    last_alive = 0.0
    end = time.monotonic() + 20
    while processes_of(uid):
        last_alive = float(Path("/proc/uptime").read_text().split()[0])
        assert time.monotonic() < end, "the old pod's processes never ended"
        time.sleep(0.02)
    world.running("new", seconds=15)
    started = float(world.kubectl.run("logs", "new", "-n", world.namespace).split()[0])
    assert started >= last_alive, "the new pod ran beside the old one's processes"


def test_a_delete_in_the_middle_of_a_slow_prepare_leaves_nothing(agent: Agent, world: World) -> None:
    """The device drains for a process that NVML shows on it, so that the next claim's Prepare waits."""
    spec = for_gpu(world, "gpu-1")
    bystander = pod("bystander", template_name="any")
    world.create(template("any", for_gpu(world, "gpu-2")), bystander)
    world.create(template("that", spec), pod("old", template_name="that"))
    world.running("old", "bystander")
    uid = world.kubectl.json("get", "pod", "bystander", "-n", world.namespace)["metadata"]["uid"]
    agent.gpus().set_processes(1, [min(processes_of(uid))])
    world.delete("pod/old")
    world.create(pod("waiting", template_name="that"))
    world.kubectl.wait("its Prepare waits", lambda: '"waiting"' in agent.status(), seconds=15)
    world.delete("pod/waiting", wait=False)
    world.kubectl.wait("the pod is gone", lambda: world.kubectl.phase(world.namespace, "waiting") == "(gone)", 80)
    agent.gpus().set_processes(1, [])
    world.create(pod("next", template_name="that"))
    world.running("next", seconds=30)


def test_the_agent_is_killed_and_pods_notice_nothing(agent: Agent, world: World) -> None:
    world.create(claim("shared"), pod("before", claim_name="shared"))
    world.running("before")
    agent.kill()
    world.create(pod("meanwhile", claim_name="shared"))
    agent.start()
    world.running("meanwhile")
    assert world.gpu_nodes("before") == world.gpu_nodes("meanwhile") != set()
    assert world.restarts("before") == 0
    world.create(template("one"), pod("after", template_name="one"))
    world.running("after")
    assert not world.gpu_nodes("after") & world.gpu_nodes("before")


def test_a_kubelet_restart_changes_nothing(agent: Agent, world: World) -> None:
    world.create(claim("shared"), pod("first", claim_name="shared"))
    world.running("first")
    agent.node.restart_kubelet()
    agent.wait_ready()
    world.create(pod("second", claim_name="shared"))
    world.running("second", seconds=60)
    assert world.gpu_nodes("second") == world.gpu_nodes("first") != set()
    assert world.restarts("first") == 0


def test_slices_come_back_after_a_wipe_that_the_api_server_delayed(agent: Agent, world: World) -> None:
    """The kubelet retries its wipe until the API server is back, long after it registered us."""
    world.create(template("one"), pod("p", template_name="one"))
    world.running("p")
    node = agent.node
    node.supervisor.stop("kube-apiserver", 15)
    node.restart_kubelet()
    time.sleep(5)
    node.start_api_server()
    kubectl = node.kubectl()
    before = {piece["metadata"]["uid"] for piece in agent.slices(kubectl)}

    def wiped_and_back() -> bool:
        now = {piece["metadata"]["uid"] for piece in agent.slices(kubectl)}
        return bool(now) and not now & before

    kubectl.wait("the kubelet's late wipe, and our slices after it", wiped_and_back, seconds=60)
    assert world.restarts("p") == 0
    world.create(pod("q", template_name="one"))
    world.running("q", seconds=60)
