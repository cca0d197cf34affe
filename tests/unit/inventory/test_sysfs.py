"""What the kernel says of the GPUs' place, from a tree of files."""

from pathlib import Path

import pytest

from kubeletplugin.inventory.sysfs import PciGpu, Sysfs, system_memory_bytes


def pci_device(root: Path, address: str, bridge: str = "pci0000:15", **files: str) -> Path:
    folder = root / "devices" / bridge / "0000:15:01.0" / address
    folder.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "class": "0x030200", **files}.items():
        (folder / name).write_text(f"{text}\n")
    link = root / "bus" / "pci" / "devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(folder)
    return folder


@pytest.mark.parametrize(("text", "node"), [("1", 1), ("0", 0), ("-1", None), ("", None), ("x", None)])
def test_numa_node(text: str, node: int | None, tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:1b:00.0", numa_node=text)
    assert Sysfs(tmp_path).numa_node("0000:1b:00.0") == node


@pytest.mark.parametrize("bridge", ["pci0000:15", "pci0008:00", "pci10000:e0"])
def test_pcie_root(bridge: str, tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:1b:00.0", bridge)
    assert Sysfs(tmp_path).pcie_root("0000:1b:00.0") == bridge


def test_a_device_that_hangs_off_no_bridge_has_no_root(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:1b:00.0", "platform")
    assert Sysfs(tmp_path).pcie_root("0000:1b:00.0") is None


def test_only_nvidia_gpus_count_and_other_drivers_are_told_apart(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:c3:00.0")
    pci_device(tmp_path, "0000:1b:00.0", **{"class": "0x030000"}).joinpath("driver").symlink_to("../drivers/nvidia")
    pci_device(tmp_path, "0000:61:00.0").joinpath("driver").symlink_to("../drivers/vfio-pci")
    pci_device(tmp_path, "0000:07:00.0", **{"class": "0x068000"})
    pci_device(tmp_path, "0000:08:00.0", vendor="0x8086")
    found = Sysfs(tmp_path).nvidia_gpus()
    assert found == (PciGpu("0000:1b:00.0", "nvidia"), PciGpu("0000:61:00.0", "vfio-pci"), PciGpu("0000:c3:00.0", ""))
    assert [gpu.expected_in_nvml for gpu in found] == [True, False, True]


def test_without_a_tree_nothing_is_known(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "none")
    assert (sysfs.nvidia_gpus(), sysfs.pcie_root("0000:1b:00.0"), sysfs.numa_node("0000:1b:00.0")) == ((), None, None)


def test_system_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemTotal:       127600748 kB\n")
    assert system_memory_bytes(tmp_path) == 127600748 * 1024


def test_system_memory_that_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="meminfo"):
        system_memory_bytes(tmp_path)
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(ValueError, match="MemTotal"):
        system_memory_bytes(tmp_path)
