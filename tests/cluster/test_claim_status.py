"""A claim's ``status.devices``: the hardware behind its devices, while a pod has them."""

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import claim, pod
from tests.cluster.world import DRIVER, Json, World


def status_of(world: World) -> Json:
    found: Json = world.kubectl.json("get", "resourceclaim", "c", "-n", world.namespace).get("status", {})
    return found


def ours(world: World) -> list[Json]:
    return [entry for entry in status_of(world).get("devices", []) if entry["driver"] == DRIVER]


@pytest.fixture
def running(world: World) -> World:
    world.create(claim("c"), pod("p", claim_name="c"))
    world.running("p")
    world.kubectl.wait("the claim shows its device", lambda: ours(world), seconds=15)
    return world


def test_it_shows_the_device_while_the_pod_runs(running: World) -> None:
    (device,) = running.devices_of({"status": status_of(running)})
    (entry,) = ours(running)
    assert entry["device"] == device
    attributes = {name: running.attribute(device, name) for name in ("uuid", "resource.kubernetes.io/pciBusID")}
    assert list(attributes.values()) == [entry["data"]["uuid"], entry["data"]["pciBusID"]]
    assert entry["data"]["driverVersion"] == "580.105.08"
    (condition,) = entry["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    running.delete("pod/p")
    running.kubectl.wait("no device is shown", lambda: not ours(running), seconds=15)


def test_a_lost_gpu_is_not_ready(running: World, agent: Agent) -> None:
    (device,) = running.devices_of({"status": status_of(running)})
    uuid = str(running.attribute(device, "uuid"))

    def ready(status: str) -> bool:
        return [entry["conditions"][0]["status"] for entry in ours(running)] == [status]

    agent.gpus().lose_gpu(uuid)
    try:
        running.kubectl.wait("the claim's device isn't ready", lambda: ready("False"), seconds=30)
    finally:
        agent.gpus().restore_gpu(uuid)
    running.kubectl.wait("the claim's device is ready again", lambda: ready("True"), seconds=30)
