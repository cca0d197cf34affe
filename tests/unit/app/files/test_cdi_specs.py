"""The driver that comes late, moves to another root, or makes its device nodes late: the claims' files follow."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.app.files.cdi_specs import HostSpecs
from kubeletplugin.app.host.hardware import Hardware
from kubeletplugin.cdi.api import ClaimDevice
from kubeletplugin.cdi.driver import DRIVER_FILE
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.errors import ClaimError, RecoverableError
from kubeletplugin.inventory.reading import Surroundings
from kubeletplugin.inventory.sysfs import Sysfs
from kubeletplugin.nvml.simulated import open_node
from tests.unit.cdi.machine import LIBRARIES, VERSION, Machine, gpu

CONTAINER = "/run/nvidia/driver"
UID = "c1"


class Host:
    """A host without a driver; ``install`` puts one under a root, ``found`` says where the agent finds it."""

    def __init__(self, folder: Path) -> None:
        self.machine = Machine(folder)
        self.machine.load_driver()
        self.found: DriverRoot | None = None
        nvml = open_node("l4x1", folder / "nvml.json").nvml()
        around = Surroundings(Sysfs(self.machine.sys), lambda: 0)
        host = self.machine.driver_root
        self.hardware = Hardware(nvml, around, self.machine.proc, self.machine.sys, host, lambda: self.found)

    def install(self, root: str = "", version: str = VERSION) -> DriverRoot:
        folder = f"{root}{LIBRARIES}"
        self.machine.library(f"libcuda.so.{version}", "libcuda.so.1", folder)
        self.machine.age()
        return DriverRoot(self.machine.root / root.lstrip("/"), root or "/")

    def make_nodes(self, root: str) -> None:
        for name in ("nvidiactl", "nvidia0"):
            self.machine.put(f"{root}/dev/{name}")

    def specs(self) -> HostSpecs:
        return HostSpecs(self.machine.writer, self.hardware)

    def written(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.machine.cdi / name).read_text())
        return content

    def libraries(self) -> set[str]:
        edits = self.written(DRIVER_FILE)["containerEdits"]
        return {mount["hostPath"] for mount in edits.get("mounts", ()) if "libcuda" in mount["hostPath"]}

    def gpu_node(self, specs: HostSpecs) -> str:
        """Where the host has the node that a claim gets."""
        name = specs.cdi_name(UID, "gpu-0")
        specs.write(UID, [ClaimDevice(name, gpu(0))])
        (file,) = (path.name for path in self.machine.cdi.iterdir() if UID in path.name)
        node = self.written(file)["devices"][0]["containerEdits"]["deviceNodes"][0]
        return str(node.get("hostPath", node["path"]))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_driver_on_the_host_that_comes_late(host: Host) -> None:
    specs = host.specs()
    specs.refresh("")
    assert host.libraries() == set()
    host.found = host.install()
    specs.refresh(VERSION)
    assert host.libraries() == {f"{LIBRARIES}/libcuda.so.{VERSION}"}


def test_a_driver_that_moves_into_a_container_and_is_upgraded_there(host: Host) -> None:
    host.found = host.install()
    specs = host.specs()
    specs.refresh(VERSION)
    host.found = host.install(CONTAINER, "590.44.01")
    specs.refresh("590.44.01")
    assert host.libraries() == {f"{CONTAINER}{LIBRARIES}/libcuda.so.590.44.01"}


def test_a_driver_that_is_away_for_a_while_keeps_its_files(host: Host) -> None:
    host.found = host.install(CONTAINER)
    specs = host.specs()
    specs.refresh(VERSION)
    before = host.written(DRIVER_FILE)
    host.found = None
    specs.refresh(VERSION)
    assert host.written(DRIVER_FILE) == before


def test_device_nodes_of_a_driver_container_are_used_once_it_has_made_them(host: Host) -> None:
    """The library can be seen through the mount before the container has loaded the module."""
    host.found = host.install(CONTAINER)
    specs = host.specs()
    specs.refresh(VERSION)
    assert host.gpu_node(specs) == "/dev/nvidia0"
    host.make_nodes(CONTAINER)
    specs.refresh(VERSION)
    assert host.gpu_node(specs) == f"{CONTAINER}/dev/nvidia0"


def test_a_claim_isnt_refused_for_a_node_that_the_driver_container_has_made_since_the_last_look(host: Host) -> None:
    host.found = host.install(CONTAINER)
    specs = host.specs()
    specs.refresh(VERSION)
    for node in (host.machine.root / "dev").iterdir():
        node.unlink()
    with pytest.raises(ClaimError, match="/dev/nvidia0 is missing"):
        host.gpu_node(specs)
    host.make_nodes(CONTAINER)
    assert host.gpu_node(specs) == f"{CONTAINER}/dev/nvidia0"
    (control,) = host.written(DRIVER_FILE)["containerEdits"]["deviceNodes"]
    assert control["hostPath"] == f"{CONTAINER}/dev/nvidiactl", "the claim's container needs these too"


def test_a_root_that_couldnt_be_followed_is_followed_at_the_next_look(host: Host) -> None:
    host.found = host.install(CONTAINER)
    specs = host.specs()
    specs.refresh(VERSION)
    host.make_nodes(CONTAINER)
    host.machine.cdi.rename(aside := host.machine.cdi.with_name("aside"))
    host.machine.cdi.touch()
    with pytest.raises(RecoverableError):
        specs.refresh(VERSION)
    host.machine.cdi.unlink()
    aside.rename(host.machine.cdi)
    specs.refresh(VERSION)
    nodes = host.written(DRIVER_FILE)["containerEdits"]["deviceNodes"]
    assert [node["hostPath"] for node in nodes] == [f"{CONTAINER}/dev/nvidiactl"]


def test_claims_are_written_and_found_whichever_root_counts(host: Host) -> None:
    host.found = host.install()
    specs = host.specs()
    specs.refresh(VERSION)
    host.gpu_node(specs)
    host.found = host.install(CONTAINER)
    specs.refresh(VERSION)
    assert specs.exists(UID)
    assert specs.claim_uids() == {UID}
    assert specs.device_ids(specs.cdi_name(UID, "gpu-0"))[0] == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0"
    specs.remove(UID)
    assert not specs.exists(UID)
    with pytest.raises(ClaimError, match="/dev/nvidia7 is missing"):
        specs.write(UID, [ClaimDevice(specs.cdi_name(UID, "gpu-7"), gpu(7))])
