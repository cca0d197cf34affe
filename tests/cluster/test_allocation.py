"""What the scheduler does with what we publish, and that each pod gets just what it was allocated."""

from tests.cluster.objects import MIG_CLASS, claim, claim_spec, container, pod, request, template
from tests.cluster.world import World

PRODUCT = "NVIDIA H100 80GB HBM3"
OURS = 'device.attributes["gpu.nvidia.com"]'


def node_of(world: World, device: str) -> str:
    """The GPU's node inside a container."""
    return f"nvidia{world.attribute(device, 'minor')}"


def test_one_gpu_by_template(world: World) -> None:
    world.create(template("one"), pod("p", template_name="one"))
    world.running("p")
    (device,) = world.devices_of(world.claim_of("p"))
    assert world.gpu_nodes("p") == {node_of(world, device)}


def test_cel_on_product_memory_and_driver_version(world: World) -> None:
    selectors = (
        f'{OURS}.productName == "{PRODUCT}"'
        ' && device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0'
        f' && {OURS}.driverVersion.compareTo(semver("580.0.0")) >= 0'
    )
    world.create(template("cel", claim_spec(request(cel=selectors))), pod("p", template_name="cel"))
    world.running("p")
    assert len(world.gpu_nodes("p")) == 1


def test_two_pods_share_one_claim(world: World) -> None:
    world.create(claim("shared"), pod("p1", claim_name="shared"), pod("p2", claim_name="shared"))
    world.running("p1", "p2")
    assert world.gpu_nodes("p1") == world.gpu_nodes("p2") != set()
    world.delete("pod/p1")
    assert len(world.gpu_nodes("p2")) == 1


def test_two_containers_share_one_claim(world: World) -> None:
    world.create(template("one"), pod("p", template_name="one", containers=[container("a"), container("b")]))
    world.running("p")
    assert world.gpu_nodes("p", "a") == world.gpu_nodes("p", "b") != set()


def test_two_requests_reach_their_own_containers(world: World) -> None:
    spec = claim_spec(request("first"), request("second", count=2))
    containers = [
        container("one", claims=[("gpu", "first")]),
        container("two", claims=[("gpu", "second")]),
        container("all"),
    ]
    world.create(template("three", spec), pod("p", template_name="three", containers=containers))
    world.running("p")
    one, two, all_of_them = (world.gpu_nodes("p", name) for name in ("one", "two", "all"))
    assert (len(one), len(two)) == (1, 2)
    assert one | two == all_of_them and not one & two


def test_match_attribute_on_pcie_root(world: World) -> None:
    same_root = {"requests": ["gpu"], "matchAttribute": "resource.kubernetes.io/pcieRoot"}
    apart = claim_spec(request(count=2), constraints=[same_root])
    world.create(template("together", apart), pod("p", template_name="together"))
    # Each GPU of a DGX H100 has a root of its own, so two can't be had and one can.
    single = claim_spec(request(), constraints=[same_root])
    world.create(template("alone", single), pod("q", template_name="alone"))
    world.running("q")
    assert world.pending("p")


def test_prioritized_list_takes_what_exists(world: World) -> None:
    wish = {
        "name": "gpu",
        "firstAvailable": [
            {
                "name": "b200",
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [{"cel": {"expression": f'{OURS}.productName == "NVIDIA B200"'}}],
            },
            {"name": "any", "deviceClassName": "gpu.nvidia.com"},
        ],
    }
    world.create(template("list", claim_spec(wish)), pod("p", template_name="list"))
    world.running("p")
    (result,) = world.claim_of("p")["status"]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/any"
    assert world.gpu_nodes("p") == {node_of(world, result["device"])}


def test_admin_access_beside_the_holder(world: World) -> None:
    label = {"resource.kubernetes.io/admin-access": "true"}
    world.kubectl.run("label", "namespace", world.namespace, *(f"{key}={value}" for key, value in label.items()))
    world.create(template("one"), pod("user", template_name="one"))
    world.running("user")
    (device,) = world.devices_of(world.claim_of("user"))
    uuid = world.attribute(device, "uuid")
    spec = claim_spec(request(cel=f'{OURS}.uuid == "{uuid}"', admin=True))
    world.create(template("admin", spec), pod("monitor", template_name="admin"))
    world.running("monitor")
    assert world.gpu_nodes("monitor") == world.gpu_nodes("user")
    world.delete("pod/monitor")
    assert len(world.gpu_nodes("user")) == 1


def test_a_selector_that_matches_nothing_stays_pending(world: World) -> None:
    spec = claim_spec(request(cel=f'{OURS}.productName == "NVIDIA H300"'))
    world.create(template("none", spec), template("one"), pod("p", template_name="none"), pod("q", template_name="one"))
    world.running("q")
    assert world.pending("p")
    assert any("cannot allocate all claims" in event for event in world.events("p"))


def test_no_mig_device_while_mig_is_off(world: World) -> None:
    world.create(template("mig", claim_spec(request(device_class=MIG_CLASS))), template("one"))
    world.create(pod("p", template_name="mig"), pod("q", template_name="one"))
    world.running("q")
    assert world.pending("p")
