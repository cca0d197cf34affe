"""The simulated machine's own tree gives CDI files that a runtime resolves, full GPUs and partitions alike."""

import json
from pathlib import Path

import pytest

from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.cdi.claims import ClaimSpecFiles
from kubeletplugin.cdi.driver import DRIVER_FILE, DriverSpecFile
from kubeletplugin.cdi.hostnodes import HostNodes
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import ClaimError
from kubeletplugin.nvml.simulated import SimulatedNode, machine_names, open_node, parse_mig_flag
from kubeletplugin.nvml.simulated.state import Majors
from tests.contract.cdi.peer import captured
from tests.contract.cdi.runtime import Container, inject
from tests.fakes.fence import AlwaysHeld
from tests.unit.cdi.machine import gpu, mig


class Agent:
    """The CDI part of an agent on a simulated node."""

    def __init__(self, node: SimulatedNode, folder: Path, *, headless: bool = False) -> None:
        self.node = node
        self.tree = folder / "tree"
        self.cdi = folder / "cdi"
        node.materialise(self.tree, "none" if headless else "placeholder")
        root = DriverRoot(self.tree, str(self.tree))
        nodes = HostNodes(root, proc=self.tree / "proc", sys=self.tree / "sys")
        writer = SpecWriter(self.cdi, AlwaysHeld(), prefix="k8s.gpu.nvidia.com-", instance="a", epoch=1)
        self.driver = DriverSpecFile(writer, nodes, root)
        self.claims = ClaimSpecFiles(writer, nodes, self.driver)
        self.driver.refresh(node.state().driver.version)

    def container(self, uid: str, *devices: ClaimDevice) -> Container:
        self.claims.write(uid, devices)
        return inject(self.cdi, [i for device in devices for i in self.claims.device_ids(device.cdi_name)])


@pytest.mark.parametrize("machine", machine_names())
def test_every_shipped_machine(tmp_path: Path, machine: str) -> None:
    node = open_node(machine, tmp_path / "state")
    agent = Agent(node, tmp_path)
    minors = [found.minor for found in node.state().gpus]
    container = agent.container("c", *(ClaimDevice(f"c-gpu-{minor}", gpu(minor)) for minor in minors))
    assert {f"/dev/nvidia{minor}" for minor in minors} < container.nodes.keys()
    assert container.env["NVIDIA_CTK_LIBCUDA_DIR"].endswith("-linux-gnu")
    assert any(path.endswith("/libcuda.so.1") for path in container.mounts), "no hook program: names are mounts"


def test_a_partition_of_a_dgx_h100(tmp_path: Path) -> None:
    node = open_node("dgx-h100", tmp_path / "state", parse_mig_flag("0=1g.10gb,3g.40gb"))
    agent = Agent(node, tmp_path)
    (first, _) = node.state().gpus[0].gpu_instances
    device = mig(0, first.id, first.compute_instances[0].id, "gpu-0-mig-1g10gb-19-0")
    container = agent.container("c", ClaimDevice("c-gpu-0-mig", device))
    caps = {path: entry for path, entry in container.nodes.items() if "nvidia-caps" in path}
    assert len(caps) == 2
    assert {entry["fileMode"] for entry in caps.values()} == {0o444}
    assert {entry["major"] for entry in caps.values()} == {node.state().majors.caps}
    assert "/dev/nvidia0" in container.nodes


def test_all_that_the_peer_mounts_on_that_machine(tmp_path: Path) -> None:
    agent = Agent(open_node("dgx-h100", tmp_path / "state"), tmp_path)
    (_, document), *_ = captured("default")
    theirs = {mount["containerPath"] for mount in document["containerEdits"]["mounts"]}
    assert theirs <= agent.container("c", ClaimDevice("c-gpu-0", gpu(0))).mounts.keys()


def test_numbers_after_a_boot(tmp_path: Path) -> None:
    node = open_node("dgx-h100", tmp_path / "state")
    agent = Agent(node, tmp_path)
    before = agent.container("c", ClaimDevice("c-gpu-0", gpu(0)))
    node.set_majors(Majors(frontend=195, uvm=before.nodes["/dev/nvidia-uvm"]["major"] + 1, caps=240))
    after = agent.container("c", ClaimDevice("c-gpu-0", gpu(0)))
    assert after.nodes["/dev/nvidia-uvm"]["major"] == before.nodes["/dev/nvidia-uvm"]["major"] + 1


def test_a_headless_host_is_refused_by_name_until_the_node_is_made(tmp_path: Path) -> None:
    agent = Agent(open_node("dgx-h100", tmp_path / "state"), tmp_path, headless=True)
    with pytest.raises(ClaimError, match="/dev/nvidia0 is missing"):
        agent.claims.write("c", [ClaimDevice("c-gpu-0", gpu(0))])
    assert json.loads((agent.cdi / DRIVER_FILE).read_bytes())["devices"]
    (agent.tree / "dev").mkdir(exist_ok=True)
    for name in ("nvidia0", "nvidiactl"):
        (agent.tree / "dev" / name).touch()
    container = agent.container("c", ClaimDevice("c-gpu-0", gpu(0)))
    assert {"/dev/nvidia0", "/dev/nvidiactl"} == container.nodes.keys()
