"""What a container really sees: device nodes, environment, mounts; also after it restarted, and of a partition."""

from collections.abc import Iterator

import pytest

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import MIG_CLASS, claim, claim_spec, container, pod, request, template
from tests.cluster.world import World

COMMON_NODES = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}


def nvidia_nodes(world: World, name: str) -> set[str]:
    listing = world.exec(name, "find", "/dev", "-name", "nvidia*", "-type", "c").split()
    return {path.removeprefix("/dev/") for path in listing}


def test_nodes_environment_and_libraries(world: World) -> None:
    world.create(template("one"), pod("p", template_name="one"))
    world.running("p")
    (device,) = world.devices_of(world.claim_of("p"))
    minor = world.attribute(device, "minor")
    assert nvidia_nodes(world, "p") == COMMON_NODES | {f"nvidia{minor}"}
    environment = world.environment("p")
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert environment["NVIDIA_CTK_LIBCUDA_DIR"] == "/usr/lib/x86_64-linux-gnu"
    libraries = world.exec("p", "ls", "/usr/lib/x86_64-linux-gnu").split()
    assert "libcuda.so.580.105.08" in libraries and "libnvidia-ml.so.580.105.08" in libraries
    mounts = world.exec("p", "cat", "/proc/mounts").splitlines()
    library = next(line for line in mounts if " /usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08 " in line)
    assert "ro" in library.split()[3].split(",")
    assert world.exec("p", "ls", "/usr/bin/nvidia-smi").strip() == "/usr/bin/nvidia-smi"


def test_a_container_without_the_claim_sees_no_gpu(world: World) -> None:
    containers = [container("with"), container("without", claims=[])]
    world.create(template("one"), pod("p", template_name="one", containers=containers))
    world.running("p")
    assert len(world.gpu_nodes("p", "with")) == 1
    assert world.gpu_nodes("p", "without") == set()


def test_a_restarted_container_keeps_its_gpu(world: World) -> None:
    world.create(template("one"), pod("p", template_name="one"))
    world.running("p")
    before = world.gpu_nodes("p")
    # Process 1 of a PID namespace takes only the signals that it has a handler for.
    # Later, so that it doesn't end this very exec.
    world.exec("p", "sh", "-c", "(sleep 0.3; kill 1) >/dev/null 2>&1 &")
    world.kubectl.wait("the container restarted", lambda: world.restarts("p") == 1, seconds=20)
    world.running("p")
    assert world.gpu_nodes("p") == before != set()


@pytest.fixture
def partitions(agent: Agent) -> Iterator[Agent]:
    """GPU 7 cut into 3g.40gb, 2g.20gb and two 1g.10gb; whole again after."""
    gpus = agent.gpus()
    gpus.set_mig_layout("7=3g.40gb,2g.20gb,1g.10gb,1g.10gb")
    kubectl = agent.node.kubectl()
    kubectl.wait("partitions published", lambda: "gpu-7-mig-3g40gb-9-" in str(agent.slices(kubectl)))
    yield agent
    gpus.replace_gpu(7, gpus.state().gpus[7].uuid)
    kubectl.wait("GPU 7 published whole", lambda: "'name': 'gpu-7'" in str(agent.slices(kubectl)))


def mig(name: str, profile: str, count: int = 1) -> dict[str, object]:
    cel = f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'
    return request(name, device_class=MIG_CLASS, cel=cel, count=count)


def test_a_partition_gets_its_own_nodes_only(partitions: Agent, world: World) -> None:
    world.create(template("mig", claim_spec(mig("gpu", "1g.10gb"))), pod("p", template_name="mig"))
    world.running("p")
    nodes = nvidia_nodes(world, "p")
    assert COMMON_NODES | {"nvidia7"} <= nodes
    caps = {name for name in nodes if name.startswith("nvidia-caps/")}
    assert len(caps) == 2 and nodes == COMMON_NODES | {"nvidia7"} | caps


def test_two_partitions_of_one_gpu_by_parent_uuid(partitions: Agent, world: World) -> None:
    constraint = {"requests": ["big", "small"], "matchAttribute": "gpu.nvidia.com/parentUUID"}
    spec = claim_spec(mig("big", "3g.40gb"), mig("small", "2g.20gb"), constraints=[constraint])
    world.create(claim("pair", spec), pod("p", claim_name="pair"))
    world.running("p")
    found = world.kubectl.json("get", "resourceclaim", "pair", "-n", world.namespace)
    devices = world.devices_of(found)
    assert len({world.attribute(device, "parentUUID") for device in devices}) == 1
    caps = {name for name in nvidia_nodes(world, "p") if name.startswith("nvidia-caps/")}
    assert len(caps) == 4
