"""The driver's file: what is in it, that its edits apply once, and when it is written again."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.cdi import driver
from kubeletplugin.cdi.driver import DRIVER_DEVICE, DRIVER_FILE, DRIVER_ID, DriverSpecFile
from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import NotActiveError
from tests.unit.cdi.checker import problems
from tests.unit.cdi.machine import LIBRARIES, VERSION, LostLease, Machine
from tests.unit.cdi.test_hooktool import CURRENT, OLD

RO = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, "/host")
    machine.load_driver()
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1")
    machine.library(f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1", f"{LIBRARIES}/vdpau")
    machine.put("/usr/bin/nvidia-smi")
    machine.age()
    return machine


def document(machine: Machine) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((machine.cdi / DRIVER_FILE).read_bytes())
    assert problems(loaded) == []
    return loaded


def edits(machine: Machine) -> dict[str, Any]:
    found: dict[str, Any] = document(machine)["containerEdits"]
    return found


def container_paths(machine: Machine) -> list[str]:
    return [mount["containerPath"] for mount in edits(machine).get("mounts", [])]


def test_names_never_change() -> None:
    """Ids that pods hold across upgrades: changing one breaks every container of theirs."""
    assert DRIVER_ID == "k8s.gpu.nvidia.com/driver=all"
    assert DRIVER_FILE == "k8s.gpu.nvidia.com-driver.json"


def test_edits_are_the_file_s_and_the_device_has_one_variable(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    assert machine.driver.refresh(VERSION)
    found = document(machine)
    assert found["cdiVersion"] == "0.5.0"
    assert found["kind"] == "k8s.gpu.nvidia.com/driver"
    assert found["devices"] == [
        {"name": DRIVER_DEVICE, "containerEdits": {"env": [f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}"]}}
    ]
    assert "env" not in found["containerEdits"]
    assert set(found["containerEdits"]) == {"deviceNodes", "hooks", "mounts"}


def test_common_nodes(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    nodes = {
        node["path"]: (node["hostPath"], node["major"], node.get("minor", 0)) for node in edits(machine)["deviceNodes"]
    }
    assert nodes == {
        "/dev/nvidia-modeset": ("/host/dev/nvidia-modeset", 195, 254),
        "/dev/nvidia-uvm": ("/host/dev/nvidia-uvm", 510, 0),
        "/dev/nvidia-uvm-tools": ("/host/dev/nvidia-uvm-tools", 510, 1),
        "/dev/nvidiactl": ("/host/dev/nvidiactl", 195, 255),
    }


def test_the_oldest_runtimes_can_read_the_file_of_a_driver_on_the_host(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.load_driver()
    machine.driver.refresh(VERSION)
    assert document(machine)["cdiVersion"] == "0.3.0"


def test_mounts_with_hooks(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    machine.put("/run/nvidia-persistenced/socket")
    machine.driver.refresh(VERSION)
    mounts = edits(machine)["mounts"]
    assert [(mount["hostPath"], mount["containerPath"], mount["options"]) for mount in mounts] == [
        ("/host/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", [*RO, "noexec"]),
        ("/host/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", RO),
        (f"/host{LIBRARIES}/libcuda.so.{VERSION}", f"{LIBRARIES}/libcuda.so.{VERSION}", RO),
        (
            f"/host{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
            f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
            RO,
        ),
    ]


def test_hooks(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-ctk", CURRENT)
    machine.driver.refresh(VERSION)
    hooks = edits(machine)["hooks"]
    assert {hook["path"] for hook in hooks} == {"/host/usr/bin/nvidia-ctk"}
    assert {hook["hookName"] for hook in hooks} == {"createContainer"}
    assert [hook["args"] for hook in hooks] == [
        [
            *["nvidia-ctk", "hook", "create-symlinks"],
            *["--link", f"libcuda.so.1::{LIBRARIES}/libcuda.so"],
            *["--link", f"libcuda.so.{VERSION}::{LIBRARIES}/libcuda.so.1"],
            *["--link", f"libvdpau_nvidia.so.{VERSION}::{LIBRARIES}/vdpau/libvdpau_nvidia.so.1"],
        ],
        ["nvidia-ctk", "hook", "enable-cuda-compat", f"--host-driver-version={VERSION}"],
        ["nvidia-ctk", "hook", "update-ldcache", "--folder", LIBRARIES, "--folder", f"{LIBRARIES}/vdpau"],
        ["nvidia-ctk", "hook", "disable-device-node-modification"],
    ]


def test_an_old_hook_is_asked_only_for_what_it_has(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-cdi-hook", OLD)
    machine.driver.refresh(VERSION)
    assert [hook["args"][1] for hook in edits(machine)["hooks"]] == ["create-symlinks", "update-ldcache"]


def test_without_a_hook_every_name_is_a_mount_in_every_folder_that_glibc_searches(machine: Machine) -> None:
    machine.library(f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1", "/usr/lib64")
    machine.driver.refresh(VERSION)
    found = edits(machine)
    assert "hooks" not in found
    names = [f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"]
    names += [f"libnvidia-allocator.so.{VERSION}", "libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"]
    expected = [f"{folder}/{name}" for folder in (LIBRARIES, "/usr/lib64") for name in names]
    vdpau = [f"{LIBRARIES}/vdpau/{name}" for name in (f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1")]
    assert container_paths(machine) == sorted([*expected, *vdpau, "/usr/bin/nvidia-smi"])
    sources = {mount["containerPath"]: mount["hostPath"] for mount in found["mounts"]}
    assert sources["/usr/lib64/libcuda.so"] == f"/host{LIBRARIES}/libcuda.so.{VERSION}"
    assert sources[f"{LIBRARIES}/gbm/nvidia-drm_gbm.so"] == f"/host/usr/lib64/libnvidia-allocator.so.{VERSION}"


def test_without_a_driver_the_file_is_valid(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.driver.refresh("")
    assert document(machine) == {
        "cdiVersion": "0.3.0",
        "kind": "k8s.gpu.nvidia.com/driver",
        "devices": [{"name": "all", "containerEdits": {"env": ["GPUCLAIM_DRIVER_FILES=none"]}}],
    }


def test_no_variable_is_ever_in_both_kinds_of_file(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    with_driver = {v.split("=")[0] for v in document(machine)["devices"][0]["containerEdits"]["env"]}
    machine.driver.refresh("")
    without = {v.split("=")[0] for v in document(machine)["devices"][0]["containerEdits"]["env"]}
    assert with_driver | without == driver.VARIABLES
    assert "NVIDIA_VISIBLE_DEVICES" not in driver.VARIABLES


def test_ensure_writes_nothing_while_nothing_changes(machine: Machine) -> None:
    assert machine.driver.refresh(VERSION)
    inode = (machine.cdi / DRIVER_FILE).stat().st_ino
    assert not machine.driver.refresh(VERSION)
    assert not machine.driver.ensure()
    assert (machine.cdi / DRIVER_FILE).stat().st_ino == inode
    assert machine.fence.asked == 1


def test_ensure_sees_what_changed(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    (machine.proc / "devices").write_text("Character devices:\n195 nvidia\n511 nvidia-uvm\n")
    assert machine.driver.ensure()
    assert edits(machine)["deviceNodes"][1]["major"] == 511
    (machine.root / "dev/nvidia-modeset").unlink()
    assert machine.driver.ensure()
    assert "/dev/nvidia-modeset" not in [node["path"] for node in edits(machine)["deviceNodes"]]
    machine.library(f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1")
    assert machine.driver.ensure()
    assert f"{LIBRARIES}/libnvidia-ml.so.1" in container_paths(machine)
    (machine.root / "usr/bin/nvidia-smi").unlink()
    assert machine.driver.ensure()
    assert "/usr/bin/nvidia-smi" not in container_paths(machine)
    assert not machine.driver.ensure()


def test_a_socket_that_comes_and_goes(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    socket = machine.put("/run/nvidia-persistenced/socket")
    assert machine.driver.ensure()
    assert "/run/nvidia-persistenced/socket" in container_paths(machine)
    socket.unlink()
    assert machine.driver.ensure()
    assert "/run/nvidia-persistenced/socket" not in container_paths(machine)


def test_a_new_toolkit_is_noticed(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-cdi-hook", OLD)
    machine.age()
    machine.driver.refresh(VERSION)
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    assert machine.driver.ensure()
    assert len(edits(machine)["hooks"]) == 4
    (machine.root / "usr/bin/nvidia-cdi-hook").unlink()
    assert machine.driver.ensure()
    assert "hooks" not in edits(machine)


def test_a_lost_file_comes_back(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    (machine.cdi / DRIVER_FILE).unlink()
    assert machine.driver.ensure()
    assert document(machine)


def test_ensure_before_the_first_look_leaves_the_file_of_an_earlier_run(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    later = DriverSpecFile(machine.writer, machine.nodes, machine.driver_root)
    assert not later.ensure()
    assert document(machine)["devices"][0]["containerEdits"]["env"] == [f"NVIDIA_CTK_LIBCUDA_DIR={LIBRARIES}"]


def test_an_upgrade_is_a_rename_over_the_one_file(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    machine.library("libcuda.so.590.48.01", "libcuda.so.1")
    assert machine.driver.refresh("590.48.01")
    assert [path.name for path in machine.cdi.iterdir()] == [DRIVER_FILE]
    assert f"{LIBRARIES}/libcuda.so.590.48.01" in container_paths(machine)
    assert f"{LIBRARIES}/libcuda.so.{VERSION}" not in container_paths(machine)


def test_a_version_without_libraries_is_told_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        machine.driver.refresh("590.48.01")
        machine.driver.refresh("590.48.01")
    (record,) = caplog.records
    assert f"driver 590.48.01 is loaded but {machine.root} holds libraries of {VERSION} only" in record.getMessage()


def test_only_the_active_instance_writes(machine: Machine) -> None:
    machine.driver.refresh(VERSION)
    before = (machine.cdi / DRIVER_FILE).read_bytes()
    writer = SpecWriter(machine.cdi, LostLease(), prefix="k8s.gpu.nvidia.com-", instance="old", epoch=1)
    stale = DriverSpecFile(writer, machine.nodes, machine.driver_root)
    with pytest.raises(NotActiveError):
        stale.refresh("")
    assert (machine.cdi / DRIVER_FILE).read_bytes() == before
    with pytest.raises(NotActiveError):
        stale.ensure()
