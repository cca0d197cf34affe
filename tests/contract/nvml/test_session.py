"""Begin, end and failure of a real session: loading, re-loading, stale handles, hangs, error codes."""

import os
import threading
import time
from pathlib import Path

import pynvml
import pytest

from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError
from kubeletplugin.nvml.library import LibraryError
from kubeletplugin.nvml.real import RealNvml, open_real
from kubeletplugin.nvml.simulated.profile import load_profile
from kubeletplugin.nvml.worker import NvmlWorkers
from tests.contract.nvml.snapshot import outcome
from tests.nvmlmock.build import SONAME
from tests.nvmlmock.mock import ANY_DEVICE, HANG, LibraryFor, MakeMock, NvmlMock, OpenReal

H100 = load_profile("dgx-h100")


@pytest.fixture
def mock(make_mock: MakeMock) -> NvmlMock:
    return make_mock(H100)


def test_calls_outside_a_session_are_refused(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    nvml = RealNvml(lambda: mock.library)
    with pytest.raises(NvmlError, match="nvmlDeviceGetCount: UNINITIALIZED"):
        nvml.device_count()
    nvml.init()
    device = nvml.device_by_index(0)
    nvml.shutdown()
    assert outcome(nvml.device_count) == NvmlCode.UNINITIALIZED
    assert outcome(nvml.uuid, device) == NvmlCode.UNINITIALIZED


def test_handles_end_with_their_session(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    """They are addresses in a library that may be gone."""
    nvml = open_real_nvml(mock)
    device = nvml.device_by_index(0)
    nvml.shutdown()
    nvml.init()
    assert outcome(nvml.uuid, device) == NvmlCode.UNINITIALIZED
    assert nvml.uuid(nvml.device_by_index(0)) == H100.gpus[0].uuid


def test_a_second_session_ends_the_first(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    first = RealNvml(lambda: mock.library)
    first.init()
    second = open_real_nvml(mock)
    assert outcome(first.device_count) == NvmlCode.UNINITIALIZED
    assert second.device_count() == 8


def test_a_library_that_comes_late(mock: NvmlMock, tmp_path: Path) -> None:
    late = tmp_path / "late.so"
    nvml = RealNvml(lambda: late)
    with pytest.raises(LibraryError, match=rf"load {late}: No such file") as failure:
        nvml.init()
    assert failure.value.code == NvmlCode.LIBRARY_NOT_FOUND
    late.write_bytes(b"half of a copy")
    with pytest.raises(LibraryError, match=rf"load {late}: .*late.so"):
        nvml.init()
    os.replace(_copy(mock.library, tmp_path / "copy.so"), late)
    nvml.init()
    assert nvml.device_count() == 8
    nvml.shutdown()


def test_a_driver_module_that_comes_late(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    mock.fault("nvmlInitWithFlags", ANY_DEVICE, NvmlCode.DRIVER_NOT_LOADED, times=1)
    nvml = RealNvml(lambda: mock.library)
    with pytest.raises(NvmlError, match="nvmlInitWithFlags: DRIVER_NOT_LOADED"):
        nvml.init()
    assert outcome(nvml.device_count) == NvmlCode.UNINITIALIZED
    nvml.init()
    assert nvml.device_count() == 8
    nvml.shutdown()


def test_a_refused_shutdown_ends_the_session(mock: NvmlMock) -> None:
    nvml = RealNvml(lambda: mock.library)
    nvml.init()
    mock.fault("nvmlShutdown", ANY_DEVICE, NvmlCode.UNKNOWN, times=1)
    assert outcome(nvml.shutdown) == NvmlCode.UNKNOWN
    assert outcome(nvml.device_count) == NvmlCode.UNINITIALIZED
    nvml.init()
    assert nvml.device_count() == 8
    nvml.shutdown()


@pytest.mark.parametrize("way", ["file replaced", "link moved"])
def test_driver_reload_opens_the_new_library(way: str, mock: NvmlMock, library_for: LibraryFor, tmp_path: Path) -> None:
    """The new library, and none of the old one's functions: it is told apart by a symbol that it lacks."""
    new = library_for(frozenset({"nvmlDeviceGetAddressingMode"}))
    root = tmp_path / "driver"
    library = root / "usr/lib64" / SONAME
    library.parent.mkdir(parents=True)
    if way == "link moved":
        _copy(mock.library, library.with_name("libnvidia-ml.so.570.10"))
        library.symlink_to("libnvidia-ml.so.570.10")
    else:
        _copy(mock.library, library)
    nvml = open_real([root])
    nvml.init()
    assert nvml.addressing_mode(nvml.device_by_index(0)) == 1
    nvml.shutdown()

    if way == "link moved":
        _copy(new, library.with_name("libnvidia-ml.so.580.10"))
        library.unlink()
        library.symlink_to("libnvidia-ml.so.580.10")
    else:
        os.replace(_copy(new, library.with_suffix(".new")), library)
    nvml.init()
    with pytest.raises(NvmlError, match="nvmlDeviceGetAddressingMode: FUNCTION_NOT_FOUND"):
        nvml.addressing_mode(nvml.device_by_index(0))
    nvml.shutdown()


def test_no_driver_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match=f"{tmp_path}: is empty"):
        open_real([tmp_path]).init()


@pytest.mark.anyio
async def test_a_hang_costs_one_gpu(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    nvml = open_real_nvml(mock)
    workers = NvmlWorkers(deadline=0.05)
    devices = [nvml.device_by_index(index) for index in range(4)]
    mock.fault("nvmlDeviceGetUUID", 3, HANG)
    with pytest.raises(NvmlTimeoutError):
        await workers.call("3", nvml.uuid, devices[3])
    assert mock.hanging() == 1
    assert workers.stuck("3")
    assert await workers.call("2", nvml.uuid, devices[2]) == H100.gpus[2].uuid
    mock.clear_faults()
    workers.close()


def test_a_call_that_hung_across_a_reload_touches_nothing(make_mock: MakeMock) -> None:
    """What it would go on with is a handle of the old library."""
    mock = make_mock(H100, {"0.mig.mode": "1"})
    nvml = RealNvml(lambda: mock.library)
    nvml.init()
    device = nvml.device_by_index(0)
    mock.fault("nvmlDeviceCreateGpuInstance", 0, HANG)
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(outcome(nvml.create_gpu_instance, device, 19)), daemon=True)
    thread.start()
    while not mock.hanging():
        time.sleep(0.001)
    nvml.shutdown()
    nvml.init()
    mock.clear_faults()
    thread.join(5)
    assert results == [NvmlCode.UNINITIALIZED]
    assert len(nvml.gpu_instances(nvml.device_by_index(0), 19)) == 1
    nvml.shutdown()


@pytest.mark.parametrize("code", [*(code for code in NvmlCode if code), 4242])
def test_every_code_arrives(code: int, mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    nvml = open_real_nvml(mock)
    mock.fault("nvmlDeviceGetUUID", 5, code)
    with pytest.raises(NvmlError) as failure:
        nvml.uuid(nvml.device_by_index(5))
    error = failure.value
    assert (error.code, error.call) == (code, "nvmlDeviceGetUUID")
    assert isinstance(error.code, NvmlCode) == (code != 4242)
    assert len({error, NvmlError(code, "nvmlDeviceGetUUID")}) == 2
    assert nvml.uuid(nvml.device_by_index(4)) == H100.gpus[4].uuid


def test_a_lost_gpu(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    nvml = open_real_nvml(mock)
    device, other = nvml.device_by_index(2), nvml.device_by_index(1)
    mock.fault("*", 2, NvmlCode.GPU_IS_LOST)
    for getter in (nvml.uuid, nvml.pci_info, nvml.mig_mode, nvml.processes, nvml.recovery_action):
        assert outcome(getter, device) == NvmlCode.GPU_IS_LOST
    assert outcome(nvml.uuid, other) == H100.gpus[1].uuid


def test_garbage_in_a_string(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    nvml = open_real_nvml(make_mock(H100, {"0.nvmlDeviceGetSerial": "16\udcff\udcfe5"}))
    with pytest.raises(NvmlError, match="nvmlDeviceGetSerial: UNKNOWN"):
        nvml.serial(nvml.device_by_index(0))


def test_module_id_keeps_out_of_the_shared_default(mock: NvmlMock, open_real_nvml: OpenReal) -> None:
    """Two threads that ask at once must not read each other's answer."""
    nvml = open_real_nvml(mock)
    assert [nvml.module_id(nvml.device_by_index(gpu.index)) for gpu in H100.gpus] == [
        gpu.module_id for gpu in H100.gpus
    ]
    (shared,) = pynvml.nvmlDeviceGetModuleId.__defaults__
    assert shared.value == 0


def _copy(source: Path, target: Path) -> Path:
    target.write_bytes(source.read_bytes())
    return target
