"""Another DRA driver and another vendor's device plugin on the node: neither notices the other."""

import json
import os
import sys
from collections.abc import Iterator

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.harness.neighbours import CDI_FILE, DRIVER, RESOURCE
from tests.cluster.objects import claim, claim_spec, container, pod, request, template
from tests.cluster.world import DRIVER as OURS
from tests.cluster.world import World

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "widget.example.com"},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
}


@pytest.fixture
def neighbours(agent: Agent) -> Iterator[None]:
    node = agent.node
    environment = {"HOME": "/root", "PATH": f"{node.layout.binaries}:{os.environ['PATH']}"}
    for kind in ("dra", "plugin"):
        command = [sys.executable, "-m", "tests.cluster.harness.neighbours", kind]
        node.supervisor.start(kind, [*command, str(node.layout.admin_kubeconfig), node.name], environment)
    kubectl = node.kubectl()
    kubectl.apply(CLASS)
    theirs = ("resourceslices", "--field-selector", f"spec.driver={DRIVER}")
    kubectl.wait("the other driver's slice", lambda: kubectl.items(*theirs))

    def allocatable() -> object:
        return kubectl.json("get", "node", node.name)["status"]["allocatable"].get(RESOURCE)

    kubectl.wait("the other plugin's capacity", lambda: allocatable() == "1")
    yield
    for kind in ("dra", "plugin"):
        node.supervisor.stop(kind)
    CDI_FILE.unlink()
    kubectl.run("delete", "deviceclass", "widget.example.com")
    kubectl.run("delete", "resourceslice", "--field-selector", f"spec.driver={DRIVER}", "--ignore-not-found")


@pytest.mark.usefixtures("neighbours")
def test_a_claim_of_both_drivers_in_one_pod(world: World) -> None:
    spec = claim_spec(request("gpu"), request("widget", device_class="widget.example.com"))
    world.create(template("both", spec), pod("p", template_name="both"))
    world.running("p")
    assert len(world.gpu_nodes("p")) == 1
    assert world.environment("p")["WIDGET"] == "from-dra"
    theirs = world.kubectl.items("resourceslices", "--field-selector", f"spec.driver={DRIVER}")
    assert [piece["metadata"]["generation"] for piece in theirs] == [1]
    world.delete("pod/p")
    world.create(pod("again", template_name="both"))
    world.running("again")


@pytest.mark.usefixtures("neighbours")
def test_both_drivers_show_their_devices_in_one_claim(world: World) -> None:
    def shown() -> dict[str, str]:
        status = world.kubectl.json("get", "resourceclaim", "both", "-n", world.namespace).get("status", {})
        return {entry["driver"]: entry["device"] for entry in status.get("devices", [])}

    spec = claim_spec(request("gpu"), request("widget", device_class="widget.example.com"))
    world.create(claim("both", spec), pod("p", claim_name="both"))
    world.running("p")
    theirs = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "both"},
        "status": {"devices": [{"driver": DRIVER, "pool": DRIVER, "device": "one", "data": {"x": 1}}]},
    }
    apply = ("apply", "--server-side", "--field-manager=them", "--subresource=status", "-n", world.namespace)
    world.kubectl.run(*apply, "-f", "-", stdin=json.dumps(theirs))
    world.kubectl.wait("both are shown", lambda: shown().keys() == {DRIVER, OURS}, seconds=15)
    world.delete("pod/p", wait=False)
    world.kubectl.wait("ours is not shown any more", lambda: OURS not in shown(), seconds=15)


@pytest.mark.usefixtures("neighbours")
def test_another_vendors_device_plugin_beside_a_claim(world: World) -> None:
    both = container()
    both["resources"] |= {"limits": {RESOURCE: "1"}}
    world.create(template("one"), pod("p", template_name="one", containers=[both]))
    world.running("p")
    assert world.environment("p")["WIDGET"] == "widget-0"
    assert len(world.gpu_nodes("p")) == 1
