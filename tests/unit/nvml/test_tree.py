"""The host tree of a simulated node."""

import os
import stat
from pathlib import Path

import pytest

from kubeletplugin.nvml.simulated import SimulatedNode, open_node, parse_mig_flag
from kubeletplugin.nvml.simulated.profile import load_profile, machine_names
from kubeletplugin.nvml.simulated.state import Majors
from kubeletplugin.nvml.simulated.tree import materialise

from .conftest import NodeFactory

GPU_0 = "0000:1b:00.0"
DISPLAY = {"dgx-spark": "0300", "rtx4090x2": "0300"}
"""Machines whose GPUs drive a display: their PCI class is VGA, not 3D controller."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "host"


def minors(root: Path) -> dict[str, int]:
    """The capability files of partitions, with their minor."""
    base = root / "proc/driver/nvidia/capabilities"
    return {
        str(path.relative_to(base).parent): int(path.read_text().split()[1]) for path in sorted(base.rglob("access"))
    }


@pytest.mark.parametrize("machine", machine_names())
def test_every_gpu_is_behind_its_root_with_its_numa_node(machine: str, root: Path) -> None:
    profile = load_profile(machine)
    materialise(profile, root)
    devices = sorted((root / "sys/bus/pci/devices").iterdir())
    assert len(devices) == len(profile.gpus)
    for device, gpu in zip(devices, profile.gpus, strict=True):
        assert device.name == gpu.pci_bus_id[4:].lower()
        assert device.resolve().relative_to(root.resolve()).parts[:3] == ("sys", "devices", gpu.pcie_root)
        assert int((device / "numa_node").read_text()) == gpu.sysfs_numa_node
        assert (device / "vendor").read_text() == "0x10de\n"
        assert (device / "class").read_text() == f"0x{DISPLAY.get(machine, '0302')}00\n"
        assert (device / "driver").resolve().name == "nvidia"


def test_gpus_on_one_switch_share_a_root_port(root: Path) -> None:
    materialise(load_profile("dgx-a100-40"), root)
    ports = [device.resolve().parent.name for device in sorted((root / "sys/bus/pci/devices").iterdir())]
    assert ports == [
        *("0000:00:01.0",) * 2,
        *("0000:40:01.0",) * 2,
        *("0000:80:01.0",) * 2,
        *("0000:b0:01.0",) * 2,
    ]


def test_partitions_have_the_drivers_numbers(make_node: NodeFactory, root: Path) -> None:
    node = make_node(mig="0=2g.20gb:0,1g.10gb:2,3g.40gb:4;1=7g.80gb")
    node.materialise(root)
    assert minors(root) == {
        "gpu0/mig/gi2": 21,
        "gpu0/mig/gi2/ci0": 22,
        "gpu0/mig/gi3": 30,
        "gpu0/mig/gi3/ci0": 31,
        "gpu0/mig/gi9": 84,
        "gpu0/mig/gi9/ci0": 85,
        "gpu1/mig/gi0": 138,
        "gpu1/mig/gi0/ci0": 139,
    }
    access = root / "proc/driver/nvidia/capabilities/gpu0/mig/gi9/access"
    assert access.read_text().splitlines()[:2] == ["DeviceFileMinor: 84", "DeviceFileMode: 292"]
    listed = (root / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert {"config 1", "monitor 2", "gpu0/gi9/ci0/access 85", "gpu7/gi14/ci7/access 1082"} <= set(listed)


def test_the_tree_follows_the_state(node: SimulatedNode, root: Path) -> None:
    node.materialise(root)
    nvml = node.nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, 1)
    instance = nvml.create_gpu_instance(gpu, 19)
    child = nvml.create_compute_instance(instance.handle, 0)
    assert set(minors(root)) == {"gpu0/mig/gi13", "gpu0/mig/gi13/ci0"}
    nvml.destroy_compute_instance(child.handle)
    nvml.destroy_gpu_instance(instance.handle)
    assert minors(root) == {}
    assert not (root / "proc/driver/nvidia/capabilities/gpu0").exists()

    node.remove_gpu(0)
    assert not (root / "sys/bus/pci/devices" / GPU_0).is_symlink()
    node.restore_gpu(0)
    assert (root / "sys/bus/pci/devices" / GPU_0 / "numa_node").read_text() == "0\n"

    boot_id = (root / "proc/sys/kernel/random/boot_id").read_text()
    node.set_majors(Majors(uvm=511))
    assert "511 nvidia-uvm\n" in (root / "proc/devices").read_text()
    node.reboot()
    assert (root / "proc/sys/kernel/random/boot_id").read_text() not in (boot_id, "")

    library = root / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
    node.set_driver(version="595.91.07")
    assert os.readlink(library) == "libcuda.so.595.91.07"
    assert not list(library.parent.glob("*580*"))
    node.set_driver(loaded=False)
    assert not (root / "proc/driver").exists()
    assert not list((root / "dev").glob("nvidia*"))
    assert "nvidia" not in (root / "proc/devices").read_text()


def test_another_process_keeps_the_tree_up_to_date_too(node: SimulatedNode, root: Path) -> None:
    node.materialise(root)
    SimulatedNode(node.store.path).set_mig_layout("0=7g.80gb")
    assert set(minors(root)) == {"gpu0/mig/gi0", "gpu0/mig/gi0/ci0"}


def test_what_others_made_or_removed_is_left_alone(node: SimulatedNode, root: Path) -> None:
    node.materialise(root)
    (root / "dev/char").mkdir()
    (root / "dev/char/195:0").symlink_to("../nvidia0")
    (root / "dev/nvidia3").unlink()
    node.set_mig_layout("0=7g.80gb")
    assert (root / "dev/char/195:0").is_symlink()
    assert not (root / "dev/nvidia3").exists()
    node.materialise(root)
    assert (root / "dev/nvidia3").exists()


def test_a_tree_that_is_gone_does_not_fail_the_call(
    node: SimulatedNode, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node.materialise(root)
    root.rename(root.with_name("elsewhere"))
    root.write_text("in the way")
    node.set_mig_layout("0=7g.80gb")
    assert "write the host tree of the simulated node" in caplog.text
    assert node.state().gpus[0].mig_enabled


def test_a_headless_host_has_no_nodes(node: SimulatedNode, root: Path) -> None:
    node.materialise(root, "none")
    assert not (root / "dev").exists()
    assert (root / "proc/devices").exists()


def test_without_device_nodes_there_are_plain_files(tmp_path: Path, root: Path) -> None:
    node = open_node("dgx-h100", tmp_path, parse_mig_flag("0=1g.10gb:2"))
    materialise(node.profile, root, node.state())
    assert sorted(path.name for path in (root / "dev").iterdir()) == [
        "nvidia-caps",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        *(f"nvidia{minor}" for minor in range(8)),
        "nvidiactl",
    ]
    assert stat.S_ISREG((root / "dev/nvidia0").stat().st_mode)
    assert {"nvidia-cap84", "nvidia-cap85"} < {path.name for path in (root / "dev/nvidia-caps").iterdir()}


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_device_nodes_behave_like_null_or_have_the_drivers_numbers(node: SimulatedNode, root: Path) -> None:
    try:
        os.mknod(root.with_name("probe"), stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this sandbox doesn't allow device nodes")
    materialise(node.profile, root, device_nodes=True)
    assert (root / "dev/nvidia0").stat().st_rdev == os.makedev(1, 3)
    assert stat.S_IMODE((root / "dev/nvidia0").stat().st_mode) == 0o666
    node.materialise(root, "real")
    assert (root / "dev/nvidia5").stat().st_rdev == os.makedev(195, 5)
    assert (root / "dev/nvidia-uvm-tools").stat().st_rdev == os.makedev(510, 1)


def test_the_drivers_libraries_are_elf_files_with_their_soname(root: Path) -> None:
    materialise(load_profile("gb200-tray"), root)
    folder = root / "usr/lib/aarch64-linux-gnu"
    library = (folder / "libnvidia-ml.so.1").read_bytes()
    assert library[:6] == b"\x7fELF\x02\x01"
    assert int.from_bytes(library[18:20], "little") == 183, "the machine's own architecture"
    assert b"\0libnvidia-ml.so.1\0" in library
    assert (folder / "libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.580.173.02"
    assert os.access(root / "usr/bin/nvidia-smi", os.X_OK)
    assert (root / "lib/firmware/nvidia/580.173.02/gsp_ga10x.bin").exists()
