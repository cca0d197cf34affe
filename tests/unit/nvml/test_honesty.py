"""The simulator against what `nvidia-smi -q -x` printed on real machines.

Every leaf of every capture is either compared with what the simulator (or, where the Nvml Protocol has no such call,
its machine profile) says, or listed below with the reason why it isn't. A fact that a profile leaves open (null) is
skipped; a call that the simulator refuses as unsupported counts as nvidia-smi's "N/A".
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeletplugin.nvml.api import DeviceHandle, FabricInfo
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.simulated import SimulatedNvml, open_node
from kubeletplugin.nvml.simulated.schema import GpuModel, MachineProfile

CAPTURES = Path(__file__).parents[2] / "data" / "captures"

MACHINE_OF = {
    "qx-a100": "dgx-a100-40",
    "qx-b200": "hgx-b200",
    "qx-gb200": "gb200-tray",
    "qx-gb300": "gb300-tray",
    "qx-h100": "dgx-h100",
    "qx-l40s": "l40sx4",
    "qx-t4": "t4x4",
}

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    nvml: SimulatedNvml
    handle: DeviceHandle
    profile: MachineProfile
    model: GpuModel
    slot: int


Fact = Callable[[Gpu], str | None]


def on_off(value: int | bool | None) -> str | None:
    return None if value is None else ("Enabled" if value else "Disabled")


def brand(gpu: Gpu) -> str:
    return {2: "Tesla", 5: "GeForce", 14: "NVIDIA"}[gpu.nvml.brand(gpu.handle)]


def architecture(gpu: Gpu) -> str:
    names = {6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper", 10: "Blackwell"}
    return names[gpu.nvml.architecture(gpu.handle)]


def fabric(field: Callable[[FabricInfo], str]) -> Fact:
    return lambda gpu: field(gpu.nvml.fabric_info(gpu.handle))


def health(shift: int, values: tuple[str, ...], bits: int = 2) -> Fact:
    return fabric(lambda info: values[info.health_mask >> shift & ((1 << bits) - 1)])


def mib(value: int | None) -> str | None:
    return None if value is None else f"{value} MiB"


def watt(milliwatt: int | None) -> str | None:
    return None if milliwatt is None else f"{milliwatt / 1000:.2f} W"


def mhz(value: int | None) -> str | None:
    return None if value is None else f"{value} MHz"


def threshold(name: str) -> Fact:
    def fact(gpu: Gpu) -> str | None:
        value = (gpu.model.thermal.thresholds or {}).get(name)
        return None if value is None else f"{value} C"

    return fact


def module_power(field: str) -> Fact:
    def fact(gpu: Gpu) -> str | None:
        power = gpu.model.module_power
        return "N/A" if power is None else watt(getattr(power, field))

    return fact


def platform(field: str) -> Fact:
    def fact(gpu: Gpu) -> str | None:
        info = gpu.profile.gpus[gpu.slot].platform_info
        value = "N/A" if info is None else getattr(info, field)
        return "N/A" if value is None else str(value)

    return fact


def module_id(gpu: Gpu) -> str | None:
    stated = gpu.profile.gpus[gpu.slot].module_id is not None
    return str(gpu.nvml.module_id(gpu.handle)) if stated else None


def pdi(gpu: Gpu) -> str:
    return "absent" if "nvmlDeviceGetPdi" in gpu.profile.driver.missing_symbols else "present"


def unsupported_as_na(call: str) -> Fact:
    return lambda gpu: "N/A" if call in gpu.model.not_supported else "supported"


TFN = ("N/A", "True", "False")

COMPARED: dict[str, Fact] = {
    "product_name": lambda gpu: gpu.nvml.name(gpu.handle),
    "product_brand": brand,
    "product_architecture": architecture,
    "persistence_mode": lambda gpu: on_off(gpu.nvml.persistence_mode(gpu.handle)),
    "addressing_mode": lambda gpu: ("None", "HMM", "ATS")[gpu.nvml.addressing_mode(gpu.handle)],
    "mig_mode/current_mig": lambda gpu: on_off(gpu.nvml.mig_mode(gpu.handle).current),
    "mig_mode/pending_mig": lambda gpu: on_off(gpu.nvml.mig_mode(gpu.handle).pending),
    "mig_devices": lambda gpu: "None" if gpu.nvml.max_mig_device_count(gpu.handle) == 0 else "some",
    "minor_number": lambda gpu: str(gpu.nvml.minor_number(gpu.handle)),
    "vbios_version": lambda gpu: gpu.model.board.vbios,
    "board_part_number": lambda gpu: gpu.model.board.board_part_number,
    "gpu_part_number": lambda gpu: gpu.model.board.gpu_part_number,
    "platformInfo/slot_number": platform("slot_number"),
    "platformInfo/tray_index": platform("tray_index"),
    "platformInfo/host_id": platform("host_id"),
    "platformInfo/peer_type": platform("peer_type"),
    "platformInfo/module_id": module_id,
    "inforom_version/img_version": lambda gpu: gpu.model.board.inforom_image,
    "c2c_mode": lambda gpu: {"unsupported": "N/A"}.get(gpu.model.modes.c2c, gpu.model.modes.c2c),
    "gpu_virtualization_mode/virtualization_mode": lambda gpu: {0: "None", 1: "Pass-Through"}[
        gpu.nvml.virtualization_mode(gpu.handle)
    ],
    "gpu_recovery_action": lambda gpu: ("None", "Reset", "Reboot")[gpu.nvml.recovery_action(gpu.handle)],
    "gsp_firmware_version": lambda gpu: gpu.nvml.driver_version() if gpu.model.modes.gsp_firmware else "N/A",
    "pci/pci_bus_id": lambda gpu: gpu.nvml.pci_info(gpu.handle).bus_id,
    "pci/pci_device_id": lambda gpu: f"{gpu.nvml.pci_info(gpu.handle).device_id:08X}",
    "pci/pci_sub_system_id": lambda gpu: f"{gpu.nvml.pci_info(gpu.handle).subsystem_id:08X}",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": lambda gpu: str(gpu.model.pci.max_link_gen),
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": lambda gpu: str(gpu.model.pci.current_link_gen),
    "pci/pci_gpu_link_info/link_widths/max_link_width": lambda gpu: f"{gpu.model.pci.max_link_width}x",
    "pci/pci_gpu_link_info/link_widths/current_link_width": lambda gpu: f"{gpu.model.pci.current_link_width}x",
    "fan_speed": unsupported_as_na("nvmlDeviceGetFanSpeed"),
    "fb_memory_usage/total": lambda gpu: mib(gpu.nvml.memory_info(gpu.handle).total // MIB),
    "fb_memory_usage/reserved": lambda gpu: mib(gpu.nvml.memory_info(gpu.handle).used // MIB),
    "bar1_memory_usage/total": lambda gpu: mib(gpu.model.bar1_mib),
    "compute_mode": lambda gpu: ("Default",)[gpu.nvml.compute_mode(gpu.handle)],
    "ecc_mode/current_ecc": lambda gpu: on_off(gpu.nvml.ecc_mode(gpu.handle).current),
    "ecc_mode/pending_ecc": lambda gpu: on_off(gpu.nvml.ecc_mode(gpu.handle).pending),
    "dram_encryption_mode/current_dram_encryption": unsupported_as_na("nvmlDeviceGetDramEncryptionMode"),
    "retired_pages/pending_retirement": lambda gpu: "No" if gpu.model.memory_health.retired_pages.supported else "N/A",
    "remapped_rows/row_remapper_histogram/row_remapper_histogram_max": lambda gpu: (
        f"{gpu.model.memory_health.remapped_rows.max_banks} bank(s)"
    ),
    "remapped_rows": unsupported_as_na("nvmlDeviceGetRemappedRows"),
    "temperature/gpu_temp_max_tlimit_threshold": threshold("tlimitShutdown"),
    "temperature/gpu_temp_slow_tlimit_threshold": threshold("tlimitSlowdown"),
    "temperature/gpu_temp_max_gpu_tlimit_threshold": threshold("tlimitGpuMax"),
    "temperature/gpu_temp_max_threshold": threshold("shutdown"),
    "temperature/gpu_temp_slow_threshold": threshold("slowdown"),
    "temperature/gpu_temp_max_gpu_threshold": threshold("gpuMax"),
    "temperature/gpu_temp_max_mem_threshold": threshold("memMax"),
    "gpu_power_readings/current_power_limit": lambda gpu: watt(gpu.model.power.enforced_milliwatt),
    "gpu_power_readings/default_power_limit": lambda gpu: watt(gpu.model.power.default_milliwatt),
    "gpu_power_readings/min_power_limit": lambda gpu: watt(gpu.model.power.min_milliwatt),
    "gpu_power_readings/max_power_limit": lambda gpu: watt(gpu.model.power.max_milliwatt),
    "module_power_readings/default_power_limit": module_power("default_milliwatt"),
    "module_power_readings/min_power_limit": module_power("min_milliwatt"),
    "module_power_readings/max_power_limit": module_power("max_milliwatt"),
    "max_clocks/graphics_clock": lambda gpu: mhz(gpu.model.clocks_mhz.graphics_max),
    "max_clocks/mem_clock": lambda gpu: mhz(gpu.model.clocks_mhz.memory_max),
    "fabric/state": fabric(lambda info: ("N/A", "Not Started", "In Progress", "Completed")[info.state]),
    "fabric/status": fabric(lambda info: "Success" if info.status == 0 else str(info.status)),
    "fabric/cliqueId": fabric(lambda info: str(info.clique_id)),
    "fabric/clusterUuid": fabric(lambda info: "zero" if set(info.cluster_uuid) <= set("0-") else "set"),
    "fabric/health/bandwidth": health(0, ("N/A", "Degraded", "Full")),
    "fabric/health/route_recovery_in_progress": health(2, TFN),
    "fabric/health/route_unhealthy": health(4, TFN),
    "fabric/health/access_timeout_recovery": health(6, TFN),
    "fabric/health/incorrect_configuration": health(8, ("N/A", "None"), bits=4),
    "fabric/health/partition_assigned": health(12, TFN),
    "fabric/health/summary": fabric(lambda info: "Healthy" if info.health_mask else "N/A"),
    "processes": lambda gpu: "".join(str(process.pid) for process in gpu.nvml.processes(gpu.handle)),
    "pdi": pdi,
}

PRINTED: dict[str, Callable[[str], str]] = {
    "fabric/clusterUuid": lambda text: text if text == "N/A" else ("zero" if set(text) <= set("0-") else "set"),
    "pdi": lambda text: "present",
}
"""Facts whose value was scrubbed in the captures: only that much of them is compared."""

OTHER_HOST = "the capture is of another host with the same GPUs: a virtual machine or another vendor's"
EXEMPT: dict[tuple[str, str], str] = {
    **{
        (name, "pci/pci_bus_id"): OTHER_HOST
        for name in ("qx-a100", "qx-b200", "qx-gb200", "qx-h100", "qx-l40s", "qx-t4")
    },
    **{
        (name, "gpu_virtualization_mode/virtualization_mode"): OTHER_HOST
        for name in ("qx-a100", "qx-b200", "qx-gb200", "qx-h100")
    },
    ("qx-h100", "board_part_number"): "one board of the eight is of another revision; a profile has one per model",
}

READING = "a reading that changes by the minute"
COUNTER = "a counter of one board's history"
UNUSED = "nothing in gpuclaim reads it, and the profile doesn't state it"
SCRUBBED = "scrubbed in the captures, synthetic in the profiles"
NOT_COMPARED: dict[str, str] = {
    "display_mode": UNUSED,
    "display_attached": UNUSED,
    "display_active": UNUSED,
    "accounting_mode": UNUSED,
    "accounted_processes": UNUSED,
    "driver_model": "Windows only",
    "serial": SCRUBBED + "; who shares one is compared on its own",
    "uuid": SCRUBBED,
    "multigpu_board": UNUSED,
    "board_id": "follows from the PCI address",
    "gpu_fru_part_number": UNUSED,
    "platformInfo/chassis_serial_number": SCRUBBED,
    "platformInfo/gpu_fabric_guid": SCRUBBED,
    "inforom_version/oem_object": UNUSED,
    "inforom_version/ecc_object": UNUSED,
    "inforom_version/pwr_object": UNUSED,
    "inforom_bbx_flush": COUNTER,
    "gpu_operation_mode": UNUSED,
    "gpu_virtualization_mode/host_vgpu_mode": UNUSED,
    "gpu_virtualization_mode/vgpu_heterogeneous_mode": UNUSED,
    "gpu_reset_status": "deprecated: prints no value",
    "ibmnpu": UNUSED,
    "pci/pci_bus": "part of the bus id",
    "pci/pci_device": "part of the bus id",
    "pci/pci_domain": "part of the bus id",
    "pci/pci_base_class": "in sysfs, not NVML: see test_tree",
    "pci/pci_sub_class": "in sysfs, not NVML: see test_tree",
    "pci/pci_gpu_link_info/pcie_gen/device_current_link_gen": UNUSED,
    "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": UNUSED,
    "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen": UNUSED,
    "pci/pci_bridge_chip": UNUSED,
    "pci/replay": COUNTER,
    "pci/tx_util": READING,
    "pci/rx_util": READING,
    "pci/atomic_caps": UNUSED,
    "performance_state": READING,
    "clocks_event_reasons": READING,
    "sparse_operation_mode": UNUSED,
    "fb_memory_usage/used": READING,
    "fb_memory_usage/free": "rounded apart from the other three",
    "bar1_memory_usage/used": READING,
    "bar1_memory_usage/free": READING,
    "cc_protected_memory_usage": READING,
    "utilization": READING,
    "encoder_stats": READING,
    "fbc_stats": READING,
    "dram_encryption_mode/pending_dram_encryption": "as the current one",
    "ecc_errors": COUNTER,
    "retired_pages": "counters; whether there are any is compared",
    "remapped_rows/": "counters; whether there are any and the number of banks are compared",
    "temperature": READING,
    "supported_gpu_target_temp": UNUSED,
    "gpu_power_readings": READING,
    "gpu_memory_power_readings": READING,
    "module_power_readings": READING,
    "power_smoothing": UNUSED,
    "power_profiles": UNUSED,
    "clocks/": READING,
    "applications_clocks": UNUSED,
    "default_applications_clocks": UNUSED,
    "deferred_clocks": UNUSED,
    "max_clocks/sm_clock": "equals the graphics clock",
    "max_clocks/video_clock": UNUSED,
    "max_customer_boost_clocks": UNUSED,
    "clock_policy": UNUSED,
    "voltage": READING,
    "supported_clocks": UNUSED,
    "capabilities": UNUSED,
    "edpp_multiplier": UNUSED,
}


def leaves(element: ET.Element, path: str = "") -> Iterator[tuple[str, str]]:
    if len(element) == 0 and path:
        yield path, (element.text or "").strip()
    for child in element:
        yield from leaves(child, f"{path}/{child.tag}" if path else child.tag)


def capture(name: str) -> ET.Element:
    return ET.parse(CAPTURES / f"{name}.xml").getroot()


@pytest.fixture
def gpus(request: pytest.FixtureRequest, tmp_path: Path) -> list[Gpu]:
    node = open_node(MACHINE_OF[request.param], tmp_path)
    nvml = node.nvml()
    nvml.init()
    return [
        Gpu(nvml, nvml.device_by_index(slot), node.profile, node.profile.model_of(slot), slot)
        for slot in range(nvml.device_count())
    ]


each_capture = pytest.mark.parametrize(("name", "gpus"), [(name, name) for name in MACHINE_OF], indirect=["gpus"])


def simulated(fact: Fact, gpu: Gpu) -> str | None:
    try:
        return fact(gpu)
    except NvmlError as e:
        assert e.unsupported, e
        return "N/A"


@each_capture
def test_agrees_with_the_capture_on_every_stated_fact(name: str, gpus: list[Gpu]) -> None:
    differences = []
    compared = 0
    for gpu, printed in zip(gpus, capture(name).findall("gpu"), strict=False):
        for path, text in leaves(printed):
            if path not in COMPARED or (name, path) in EXEMPT:
                continue
            ours = simulated(COMPARED[path], gpu)
            theirs = PRINTED.get(path, str)(text)
            compared += ours is not None
            if ours is not None and ours != theirs:
                differences.append(f"GPU {gpu.slot} {path}: captured {theirs}, simulated {ours}")
    assert not differences
    assert compared > 40


@each_capture
def test_agrees_with_the_capture_on_the_driver(name: str, gpus: list[Gpu]) -> None:
    root, nvml = capture(name), gpus[0].nvml
    assert root.findtext("driver_version") == nvml.driver_version()
    major, minor = divmod(nvml.cuda_driver_version(), 1000)
    assert root.findtext("cuda_version") == f"{major}.{minor // 10}"


@each_capture
def test_agrees_with_the_capture_on_who_shares_a_serial(name: str, gpus: list[Gpu]) -> None:
    printed = [gpu.findtext("serial") for gpu in capture(name).findall("gpu")]
    ours = [gpu.nvml.serial(gpu.handle) for gpu in gpus[: len(printed)]]
    assert [ours.index(serial) for serial in ours] == [printed.index(serial) for serial in printed]
    assert all(re.fullmatch(r"\d{13}", serial) for serial in ours)


@pytest.mark.parametrize("name", MACHINE_OF)
def test_every_fact_of_a_capture_is_compared_or_has_a_reason_not_to_be(name: str) -> None:
    unexplained = {
        path
        for gpu in capture(name).findall("gpu")
        for path, _ in leaves(gpu)
        if path not in COMPARED and not any(path.startswith(prefix) for prefix in NOT_COMPARED)
    }
    assert not unexplained


def test_every_exemption_is_of_a_fact_that_is_compared() -> None:
    assert {path for _, path in EXEMPT} <= set(COMPARED)
