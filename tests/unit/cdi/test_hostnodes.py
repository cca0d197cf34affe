"""Numbers come from the kernel's list and the driver's scheme, else from the node itself, at each call anew."""

import os
from pathlib import Path

import pytest

from kubeletplugin.cdi.hostnodes import FoundNode, HostNodes, find_dev_root, read_node
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.spec import DeviceNode
from kubeletplugin.errors import ClaimError
from tests.unit.cdi.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "/host")


def nodes_of(machine: Machine, table: dict[str, FoundNode]) -> HostNodes:
    def read(path: Path) -> FoundNode | None:
        return table.get("/" + str(path.relative_to(machine.root)))

    return HostNodes(machine.driver_root, proc=machine.proc, sys=machine.sys, read=read)


def test_a_gpu_s_node(machine: Machine) -> None:
    machine.load_driver(gpus=4)
    assert machine.nodes.gpu(3) == DeviceNode(
        "/dev/nvidia3", "/host/dev/nvidia3", "c", 195, 3, file_mode=0o666, permissions="rwm"
    )
    assert machine.nodes.gpu(4) is None


def test_a_node_that_the_host_has_at_the_same_path_needs_no_second_one(tmp_path: Path) -> None:
    """What names one can't be read by runtimes that know CDI 0.3.0 only."""
    machine = Machine(tmp_path)
    machine.load_driver()
    node = machine.nodes.gpu(0)
    assert node is not None
    assert (node.path, node.host_path) == ("/dev/nvidia0", "")
    assert {node.host_path for node in machine.nodes.common()} == {""}


def test_the_kernel_s_number_beats_a_stale_node(machine: Machine) -> None:
    (machine.proc / "devices").write_text("Character devices:\n510 nvidia-uvm\n")
    stale = {"/dev/nvidia-uvm": FoundNode(True, 237, 0, 0o660), "/dev/nvidiactl": FoundNode(True, 195, 255)}
    uvm, control = nodes_of(machine, stale).common()
    assert (uvm.major, uvm.minor, uvm.file_mode) == (510, 0, 0o660)
    assert (control.major, control.minor) == (195, 255), "not in the kernel's list: its own numbers"


def test_numbers_are_never_remembered(machine: Machine) -> None:
    machine.load_driver()
    uvm = next(node for node in machine.nodes.common() if node.path == "/dev/nvidia-uvm-tools")
    assert (uvm.major, uvm.minor) == (510, 1)
    (machine.proc / "devices").write_text("Character devices:\n511 nvidia-uvm\n195 nvidia\n")
    uvm = next(node for node in machine.nodes.common() if node.path == "/dev/nvidia-uvm-tools")
    assert (uvm.major, uvm.minor) == (511, 1)


def test_names_of_older_drivers(machine: Machine) -> None:
    machine.load_driver(devices="Character devices:\n195 nvidia-frontend\n234 nvidia-uvm\n")
    numbers = {node.path: (node.major, node.minor) for node in machine.nodes.common()}
    assert numbers == {
        "/dev/nvidia-modeset": (195, 254),
        "/dev/nvidia-uvm": (234, 0),
        "/dev/nvidia-uvm-tools": (234, 1),
        "/dev/nvidiactl": (195, 255),
    }


def test_block_devices_of_the_same_name_don_t_count(machine: Machine) -> None:
    machine.devices("nvidia-uvm")
    (machine.proc / "devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n259 nvidia-uvm\n")
    assert machine.nodes.common() == ()


def test_a_plain_file_is_no_node_where_the_kernel_knows_no_driver(machine: Machine) -> None:
    machine.devices("nvidia0")
    assert machine.nodes.gpu(0) is None, "no /proc/devices"
    (machine.proc / "devices").write_text("Character devices:\n  1 mem\n")
    assert machine.nodes.gpu(0) is None


def test_reading_real_nodes(tmp_path: Path) -> None:
    null = read_node(Path("/dev/null"))
    assert null is not None
    assert (null.is_char_device, null.major, null.minor) == (True, 1, 3)
    assert null.mode == os.stat("/dev/null").st_mode & 0o7777
    (tmp_path / "file").touch()
    plain = read_node(tmp_path / "file")
    assert plain is not None and not plain.is_char_device
    assert read_node(tmp_path / "absent") is None


def test_drm_nodes_by_pci_address(machine: Machine) -> None:
    machine.load_driver()
    machine.devices("dri/card1", "dri/renderD128", "dri/card2")
    machine.drm("0000:1b:00.0", "card1", "card1-DP-1", "renderD128", "renderD129")
    found = machine.nodes.drm("0000:1b:00.0")
    assert [(node.path, node.major, node.minor) for node in found] == [
        ("/dev/dri/card1", 226, 1),
        ("/dev/dri/renderD128", 226, 128),
    ]
    assert machine.nodes.drm("0000:43:00.0") == ()


def test_drm_links_are_the_host_s(machine: Machine) -> None:
    machine.load_driver()
    machine.devices("dri/card1", "dri/card2")
    machine.drm("0000:1b:00.0", "card1")
    machine.link("/dev/dri/by-path/pci-0000:1b:00.0-card", "../card1")
    machine.link("/dev/dri/by-path/pci-0000:43:00.0-card", "../card2")
    machine.devices("dri/by-path/not-a-link")
    links = machine.nodes.drm_links(machine.nodes.drm("0000:1b:00.0"))
    assert links == {"/dev/dri/by-path/pci-0000:1b:00.0-card": "../card1"}


def test_mig_caps_need_no_node_on_the_host(machine: Machine) -> None:
    machine.load_driver()
    machine.caps("gpu0/mig/gi9", 84)
    machine.caps("gpu0/mig/gi9/ci0", 85, mode=0o400)
    assert machine.nodes.mig_caps(0, 9, 0) == (
        DeviceNode("/dev/nvidia-caps/nvidia-cap84", type="c", major=236, minor=84, file_mode=292),
        DeviceNode("/dev/nvidia-caps/nvidia-cap85", type="c", major=236, minor=85, file_mode=0o400),
    )


@pytest.mark.parametrize("content", [None, "", "DeviceFileMinor: x\n", "DeviceFileMode: 292\n"])
def test_a_partition_without_capabilities(machine: Machine, content: str | None) -> None:
    machine.load_driver()
    machine.caps("gpu0/mig/gi9", 84)
    access = machine.proc / "driver/nvidia/capabilities/gpu0/mig/gi9/ci0/access"
    if content is not None:
        access.parent.mkdir()
        access.write_text(content)
    with pytest.raises(ClaimError, match=f"read {access}: .*nvidia-smi -L"):
        machine.nodes.mig_caps(0, 9, 0)


def test_a_driver_without_caps(machine: Machine) -> None:
    machine.load_driver(devices="Character devices:\n195 nvidia\n")
    with pytest.raises(ClaimError, match="lists no nvidia-caps; load the NVIDIA driver with MIG support"):
        machine.nodes.mig_caps(0, 9, 0)


def test_dev_root(tmp_path: Path) -> None:
    driver, host = DriverRoot(tmp_path / "driver", "/run/nvidia/driver"), DriverRoot(tmp_path / "host")
    assert find_dev_root(driver, host) is host
    (tmp_path / "driver/dev").mkdir(parents=True)
    assert find_dev_root(driver, host) is host, "an empty /dev of a driver root isn't the one"
    (tmp_path / "driver/dev/nvidiactl").touch()
    assert find_dev_root(driver, host) is driver
