"""GPUs that fall off the bus, come back, or get another driver under a live agent: who sees it, and who does not."""

from collections.abc import Iterator

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import claim_spec, pod, request, template
from tests.cluster.world import World

GPU = 5


@pytest.fixture
def mended(agent: Agent) -> Iterator[Agent]:
    """The agent; its GPU is whole again afterwards."""
    yield agent
    agent.gpus().restore_gpu(GPU)
    kubectl = agent.node.kubectl()
    kubectl.wait("all GPUs are back", lambda: str(agent.slices(kubectl)).count("'productName'") == 8, seconds=30)


def health(world: World, name: str) -> list[str]:
    """Of each device, as the pod's status shows it."""
    found = world.kubectl.json("get", "pod", name, "-n", world.namespace)
    statuses = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus", [])
    return [entry["health"] for status in statuses for entry in status["resources"]]


def test_a_free_gpu_that_falls_off_the_bus_is_withdrawn_and_comes_back(mended: Agent, world: World) -> None:
    name = f"gpu-{GPU}"
    assert name in world.devices()
    mended.gpus().lose_gpu(GPU)
    world.kubectl.wait("it is withdrawn", lambda: name not in world.devices(), seconds=15)
    assert len(world.devices()) == 7

    def events() -> list[str]:
        return [event for event in world.kubectl.events("default", mended.node.name) if event.startswith("GPU")]

    world.kubectl.wait("the Node's event", lambda: any("GPUWithheld" in event for event in events()), seconds=15)
    mended.gpus().restore_gpu(GPU)
    world.kubectl.wait("it is back", lambda: name in world.devices(), seconds=30)
    world.kubectl.wait("the Node's event", lambda: any("GPUReturned" in event for event in events()), seconds=15)


def test_a_held_gpu_that_is_lost_shows_in_the_pods_status_and_pods_of_others_run(mended: Agent, world: World) -> None:
    if mended.node.release < (1, 36):
        pytest.skip("the kubelet shows no device's health: ResourceHealthStatus is off by default before 1.36")
    uuid = world.attribute(f"gpu-{GPU}", "uuid")
    spec = claim_spec(request(cel=f'device.attributes["gpu.nvidia.com"].uuid == "{uuid}"'))
    world.create(template("that", spec), template("one"), pod("p", template_name="that"))
    world.running("p")
    world.kubectl.wait("it is healthy", lambda: health(world, "p") == ["Healthy"], seconds=30)
    mended.gpus().lose_gpu(GPU)
    world.kubectl.wait("it is unhealthy", lambda: health(world, "p") == ["Unhealthy"], seconds=30)
    world.create(pod("other", template_name="one"))
    world.running("other")
    mended.gpus().restore_gpu(GPU)
    world.kubectl.wait("it is healthy again", lambda: health(world, "p") == ["Healthy"], seconds=30)
    assert world.restarts("p") == 0


def test_a_driver_upgrade_is_published_and_pods_go_on(agent: Agent, world: World) -> None:
    world.create(template("one"), pod("p", template_name="one"))
    world.running("p")
    before = agent.gpus().state().driver.version
    agent.gpus().set_driver(version="580.126.20")
    try:
        name = next(iter(world.devices()))
        new = lambda: world.attribute(name, "driverVersion") == "580.126.20"  # noqa: E731
        world.kubectl.wait("the new version", new, seconds=30)
        world.create(pod("q", template_name="one"))
        world.running("q")
        libraries = world.exec("q", "ls", "/usr/lib/x86_64-linux-gnu").split()
        assert "libcuda.so.580.126.20" in libraries and f"libcuda.so.{before}" not in libraries
        assert world.restarts("p") == 0
    finally:
        agent.gpus().set_driver(version=before)
