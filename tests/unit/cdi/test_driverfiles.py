"""What belongs to a driver version is found wherever distributions put it, and nothing else is."""

from pathlib import Path

import pytest

from kubeletplugin.cdi.driverfiles import DriverFile, DriverFiles, find_driver_files
from tests.unit.cdi.machine import LIBRARIES, VERSION, Machine, elf_library


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def find(machine: Machine, version: str = VERSION) -> DriverFiles:
    return find_driver_files(machine.driver_root, version)


def paths(files: DriverFiles) -> list[str]:
    return [library.file.path for library in files.libraries]


def test_nothing_at_all(machine: Machine) -> None:
    assert find(machine) == DriverFiles(VERSION)
    assert find(machine).libcuda_folder == ""


def test_no_driver_means_no_files_even_where_there_are_some(machine: Machine) -> None:
    machine.library("libnvidia-egl-wayland.so.1.1.13")
    machine.put("/usr/bin/nvidia-smi")
    assert find(machine, "") == DriverFiles("")


def test_libraries_of_this_version_only(machine: Machine) -> None:
    for name in (f"libcuda.so.{VERSION}", "libcuda.so.570.1.2", f"nvidia.so.{VERSION}", "libc.so.6", "libcuda.so.1"):
        machine.library(name)
    files = find(machine)
    assert paths(files) == [f"{LIBRARIES}/libcuda.so.{VERSION}"]
    assert files.libcuda_folder == LIBRARIES
    assert files.library_folders == (LIBRARIES,)
    assert files.other_versions == ()


@pytest.mark.parametrize(
    ("name", "soname", "links"),
    [
        (f"libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1", {"libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}"}),
        (f"libnvidia-eglcore.so.{VERSION}", f"libnvidia-eglcore.so.{VERSION}", {}),
        (f"libnvidia-x.so.{VERSION}", "", {"libnvidia-x.so.1": f"libnvidia-x.so.{VERSION}"}),
        (
            f"libcuda.so.{VERSION}",
            "libcuda.so.1",
            {"libcuda.so.1": f"libcuda.so.{VERSION}", "libcuda.so": "libcuda.so.1"},
        ),
        (
            f"libnvidia-opticalflow.so.{VERSION}",
            "libnvidia-opticalflow.so.1",
            {
                "libnvidia-opticalflow.so.1": f"libnvidia-opticalflow.so.{VERSION}",
                "libnvidia-opticalflow.so": "libnvidia-opticalflow.so.1",
            },
        ),
        (
            f"libGLX_nvidia.so.{VERSION}",
            "libGLX_nvidia.so.0",
            {
                "libGLX_nvidia.so.0": f"libGLX_nvidia.so.{VERSION}",
                "libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
            },
        ),
        (
            f"libnvidia-allocator.so.{VERSION}",
            "libnvidia-allocator.so.1",
            {
                "libnvidia-allocator.so.1": f"libnvidia-allocator.so.{VERSION}",
                "gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
            },
        ),
        (
            "libnvidia-egl-wayland.so.1.1.13",
            "libnvidia-egl-wayland.so.1",
            {"libnvidia-egl-wayland.so.1": "libnvidia-egl-wayland.so.1.1.13"},
        ),
    ],
)
def test_further_names(machine: Machine, name: str, soname: str, links: dict[str, str]) -> None:
    machine.library(name, soname)
    (library,) = find(machine).libraries
    assert library.links == links


def test_a_file_that_is_no_elf_is_still_mounted(machine: Machine) -> None:
    machine.put(f"{LIBRARIES}/libcuda.so.{VERSION}", b"not a library")
    (library,) = find(machine).libraries
    assert library.links == {"libcuda.so.1": f"libcuda.so.{VERSION}", "libcuda.so": "libcuda.so.1"}


def test_32_bit_libraries_are_left_out(machine: Machine) -> None:
    machine.put(f"/usr/lib/libcuda.so.{VERSION}", elf_library("libcuda.so.1", bits=32, machine=3))
    assert paths(find(machine)) == []


def test_merged_usr_gives_each_file_once(machine: Machine) -> None:
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1", "/usr/lib64")
    machine.link("/lib64", "usr/lib64")
    machine.link("/lib", "/usr/lib")
    assert paths(find(machine)) == [f"/usr/lib64/libcuda.so.{VERSION}"]


def test_debian_s_own_folder_behind_alternatives(machine: Machine) -> None:
    current = f"{LIBRARIES}/nvidia/current"
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1", current)
    machine.library(f"libnvidia-eglcore.so.{VERSION}", f"libnvidia-eglcore.so.{VERSION}")
    machine.link("/etc/alternatives/glx--libcuda.so", f"{current}/libcuda.so.{VERSION}")
    machine.link(f"{LIBRARIES}/libcuda.so.1", "/etc/alternatives/glx--libcuda.so")
    files = find(machine)
    assert paths(files) == [f"{LIBRARIES}/libnvidia-eglcore.so.{VERSION}", f"{current}/libcuda.so.{VERSION}"]
    assert files.libcuda_folder == current
    assert set(files.library_folders) == {LIBRARIES, current}


def test_nixos_store_paths(machine: Machine) -> None:
    store = "/nix/store/abc-nvidia/lib"
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1", store)
    machine.link(f"/run/opengl-driver/lib/libcuda.so.{VERSION}", f"{store}/libcuda.so.{VERSION}")
    assert paths(find(machine)) == [f"{store}/libcuda.so.{VERSION}"]


def test_a_link_to_another_name_keeps_the_name_that_is_asked_for(machine: Machine) -> None:
    machine.put("/opt/blob", elf_library("libcuda.so.1"))
    machine.link(f"{LIBRARIES}/libcuda.so.{VERSION}", "/opt/blob")
    (library,) = find(machine).libraries
    assert library.file == DriverFile("/opt/blob", f"{LIBRARIES}/libcuda.so.{VERSION}")


def test_dangling_links_are_no_files(machine: Machine) -> None:
    machine.link(f"{LIBRARIES}/libcuda.so.{VERSION}", "/nowhere")
    machine.link("/usr/bin/nvidia-smi", "/nowhere")
    assert find(machine) == DriverFiles(VERSION)


def test_the_first_of_two_copies_counts(machine: Machine) -> None:
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1", "/usr/lib64")
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1", LIBRARIES)
    assert paths(find(machine)) == [f"/usr/lib64/libcuda.so.{VERSION}"]


def test_vdpau_and_xorg(machine: Machine) -> None:
    machine.library(f"libcuda.so.{VERSION}", "libcuda.so.1")
    machine.library(f"libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1", f"{LIBRARIES}/vdpau")
    machine.library("nvidia_drv.so", "", "/usr/lib/xorg/modules/drivers")
    machine.library(f"libglxserver_nvidia.so.{VERSION}", "libglxserver_nvidia.so", "/usr/lib/xorg/modules/extensions")
    files = find(machine)
    assert paths(files) == [
        f"{LIBRARIES}/libcuda.so.{VERSION}",
        f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        f"/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}",
    ]
    assert files.library_folders == (LIBRARIES, f"{LIBRARIES}/vdpau"), "xorg's folders aren't the loader's"
    assert files.libraries[2].links == {}
    assert files.libraries[3].links == {"libglxserver_nvidia.so": f"libglxserver_nvidia.so.{VERSION}"}


def test_another_version_is_told(machine: Machine) -> None:
    machine.library("libcuda.so.590.48.01")
    files = find(machine)
    assert (files.libraries, files.other_versions) == ((), ("590.48.01",))


def test_tools_firmware_sockets(machine: Machine) -> None:
    machine.put("/bin/nvidia-smi")
    machine.put("/usr/bin/nvidia-imex")
    machine.put("/usr/bin/nvidia-other")
    firmware = f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    machine.put(firmware)
    machine.put(f"/lib/firmware/nvidia/{VERSION}/README")
    machine.put("/lib/firmware/nvidia/570.1.2/gsp_ga10x.bin")
    machine.put("/run/nvidia-persistenced/socket")
    machine.link("/var/run", "/run")
    machine.put("/tmp/nvidia-mps/control")
    assert find(machine).files == (
        DriverFile("/bin/nvidia-smi", "/bin/nvidia-smi"),
        DriverFile(firmware, firmware),
        DriverFile("/run/nvidia-persistenced/socket", "/run/nvidia-persistenced/socket", ipc=True),
        DriverFile("/tmp/nvidia-mps", "/tmp/nvidia-mps", ipc=True),
        DriverFile("/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex"),
    )


def test_graphics_files(machine: Machine) -> None:
    machine.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    machine.put("/usr/share/glvnd/egl_vendor.d/50_mesa.json")
    machine.put("/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json")
    machine.put("/etc/egl/egl_external_platform.d/15_nvidia_gbm.json")
    machine.put("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    machine.put("/vulkan/implicit_layer.d/nvidia_layers.json")
    machine.put("/usr/share/nvidia/nvoptix.bin")
    machine.put("/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf")
    found = {file.path: file.source for file in find(machine).files}
    assert found == {
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/egl/egl_external_platform.d/15_nvidia_gbm.json": "/etc/egl/egl_external_platform.d/15_nvidia_gbm.json",
        "/etc/vulkan/icd.d/nvidia_icd.x86_64.json": "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json": "/vulkan/implicit_layer.d/nvidia_layers.json",
        "/usr/share/nvidia/nvoptix.bin": "/usr/share/nvidia/nvoptix.bin",
        "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf": (
            "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"
        ),
    }
