"""Getters of the real implementation that put an answer together from several, or look twice at what they got."""

import pytest

from kubeletplugin.nvml.api import NO_INSTANCE, FabricInfo, Process
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated.profile import load_profile
from kubeletplugin.nvml.simulated.schema import MachineProfile
from tests.contract.nvml.snapshot import outcome
from tests.nvmlmock.mock import MakeMock, OpenReal

H100 = load_profile("dgx-h100")
COMPUTE = "0.nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "0.nvmlDeviceGetGraphicsRunningProcesses"
MPS = "0.nvmlDeviceGetMPSComputeRunningProcesses"
NOT_AVAILABLE = 2**64 - 1


def without(profile: MachineProfile, *symbols: str) -> MachineProfile:
    driver = profile.driver.model_copy(update={"missing_symbols": symbols})
    return profile.model_copy(update={"driver": driver})


def test_processes_are_merged(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    lists = {
        COMPUTE: f"30 4096 {NO_INSTANCE} {NO_INSTANCE} 20 {NOT_AVAILABLE} {NO_INSTANCE} {NO_INSTANCE}",
        GRAPHICS: f"30 4096 {NO_INSTANCE} {NO_INSTANCE} 20 77 {NO_INSTANCE} {NO_INSTANCE}",
        MPS: f"40 {NOT_AVAILABLE} 7 0 40 1 8 0",
    }
    nvml = open_real_nvml(make_mock(H100, lists))
    assert nvml.processes(nvml.device_by_index(0)) == (
        Process(20, 77),
        Process(30, 4096),
        Process(40, None, 7, 0),
        Process(40, 1, 8, 0),
    )
    assert nvml.processes(nvml.device_by_index(1)) == ()


def test_a_process_list_that_outgrows_its_array(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    mock = make_mock(H100, {COMPUTE: f"30 4096 {NO_INSTANCE} {NO_INSTANCE}"})
    nvml = open_real_nvml(mock)
    device = nvml.device_by_index(0)
    # Each try asks twice, first for the count: this makes three tries fail.
    mock.fault("nvmlDeviceGetComputeRunningProcesses_v3", 0, NvmlCode.INSUFFICIENT_SIZE, times=6)
    assert nvml.processes(device) == (Process(30, 4096),)
    mock.fault("nvmlDeviceGetComputeRunningProcesses_v3", 0, NvmlCode.INSUFFICIENT_SIZE)
    assert outcome(nvml.processes, device) == NvmlCode.INSUFFICIENT_SIZE


@pytest.mark.parametrize("refusal", [NvmlCode.NOT_SUPPORTED, "no symbol"])
def test_a_list_that_is_unsupported_is_left_out(
    refusal: str | NvmlCode, make_mock: MakeMock, open_real_nvml: OpenReal
) -> None:
    """A symbol from before MPS lists existed, or a part without graphics, says nothing about the other lists."""
    symbol = "nvmlDeviceGetMPSComputeRunningProcesses_v3"
    lists = {COMPUTE: f"30 4096 {NO_INSTANCE} {NO_INSTANCE}"}
    if refusal == "no symbol":
        mock = make_mock(without(H100, symbol), lists)
    else:
        mock = make_mock(H100, lists)
        mock.fault(symbol, 0, NvmlCode.NOT_SUPPORTED)
    nvml = open_real_nvml(mock)
    assert nvml.processes(nvml.device_by_index(0)) == (Process(30, 4096),)


def test_no_process_list_at_all(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    """Never an empty list: that would read as an idle GPU."""
    nvml = open_real_nvml(make_mock(H100, dict.fromkeys((COMPUTE, GRAPHICS, MPS), "!3")))
    assert outcome(nvml.processes, nvml.device_by_index(0)) == NvmlCode.NOT_SUPPORTED


def test_a_list_that_fails_fails_the_look(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    nvml = open_real_nvml(make_mock(H100, {MPS: "!999"}))
    assert outcome(nvml.processes, nvml.device_by_index(0)) == NvmlCode.UNKNOWN


@pytest.mark.parametrize(
    ("field", "answer"),
    [("4", 4), ("!3", NvmlCode.NOT_SUPPORTED), ("!15", NvmlCode.GPU_IS_LOST), ("untouched", NvmlCode.NOT_SUPPORTED)],
)
def test_recovery_action(field: str, answer: object, make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    """A field has a code of its own, and one that the library left alone isn't "no action needed"."""
    nvml = open_real_nvml(make_mock(H100, {"0.field.230": field}))
    assert outcome(nvml.recovery_action, nvml.device_by_index(0)) == answer


def test_fabric_info_of_an_old_driver(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    tray = load_profile("gb200-tray")
    old = without(tray, "nvmlDeviceGetGpuFabricInfoV")
    nvml = open_real_nvml(make_mock(old))
    found = nvml.fabric_info(nvml.device_by_index(0))
    assert found == FabricInfo(tray.fabric.cluster_uuid, tray.fabric.clique_id, state=3, status=0, health_mask=0)


def test_without_either_fabric_call(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    older = without(load_profile("gb200-tray"), "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo")
    nvml = open_real_nvml(make_mock(older))
    with pytest.raises(NvmlError, match="nvmlDeviceGetGpuFabricInfo: FUNCTION_NOT_FOUND"):
        nvml.fabric_info(nvml.device_by_index(0))
