"""Injected faults: codes for ever and so many times, hangs, by the API and by the file."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, faults


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(NvmlError) as raised:
        call()
    return raised.value.code


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_a_code_for_ever_until_cleared(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu, other = nvml.device_by_index(3), nvml.device_by_index(4)
    node.inject_fault(3, "memory_info", NvmlCode.GPU_IS_LOST)
    for _ in range(3):
        assert code_of(lambda: nvml.memory_info(gpu)) == NvmlCode.GPU_IS_LOST
    assert nvml.memory_info(other).total
    assert nvml.uuid(gpu)
    node.clear_faults(3)
    assert nvml.memory_info(gpu).total


def test_a_code_so_many_times_however_many_processes_share_it(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    second = node.nvml()
    second.init()
    node.inject_fault(0, "uuid", NvmlCode.UNKNOWN, times=2)
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.UNKNOWN
    assert code_of(lambda: second.uuid(second.device_by_index(0))) == NvmlCode.UNKNOWN
    assert nvml.uuid(gpu)
    assert node.state().faults == []


@pytest.mark.parametrize("selector", [3, "3", "GPU-1f5e4fdb-4393-5fe6-a3de-865e34a867bb", "0000:61:00.0", "*"])
def test_a_gpu_is_named_by_slot_uuid_or_address(node: SimulatedNode, nvml: SimulatedNvml, selector: int | str) -> None:
    node.inject_fault(selector, "nvmlDeviceGetUUID", NvmlCode.NO_PERMISSION)
    gpu = nvml.device_by_index(3)
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.NO_PERMISSION


def test_every_call_of_a_gpu_can_fail_and_no_other(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(3)
    node.inject_fault(3, "*", NvmlCode.RESET_REQUIRED)
    assert code_of(lambda: nvml.name(gpu)) == NvmlCode.RESET_REQUIRED
    assert code_of(lambda: nvml.device_by_index(3)) == NvmlCode.RESET_REQUIRED
    assert code_of(lambda: nvml.create_gpu_instance(gpu, 19)) == NvmlCode.RESET_REQUIRED
    assert nvml.device_count() == 8
    assert nvml.name(nvml.device_by_index(2))


def test_system_calls_have_faults_of_their_own(node: SimulatedNode) -> None:
    nvml = node.nvml()
    node.inject_fault("system", "init", NvmlCode.LIBRARY_NOT_FOUND, times=1)
    assert code_of(nvml.init) == NvmlCode.LIBRARY_NOT_FOUND
    nvml.init()
    node.inject_fault("system", "nvmlDeviceGetCount", NvmlCode.UNKNOWN)
    assert code_of(nvml.device_count) == NvmlCode.UNKNOWN


def test_creating_each_kind_of_instance_can_fail_by_itself(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, 1)
    node.inject_fault(0, "create_compute_instance", NvmlCode.INSUFFICIENT_RESOURCES, times=1)
    instance = nvml.create_gpu_instance(gpu, 19)
    assert code_of(lambda: nvml.create_compute_instance(instance.handle, 0)) == NvmlCode.INSUFFICIENT_RESOURCES
    nvml.create_compute_instance(instance.handle, 0)


def started(pool: ThreadPoolExecutor, call: Callable[[], object]) -> "Future[object]":
    running = threading.Event()

    def run() -> object:
        running.set()
        return call()

    future = pool.submit(run)
    assert running.wait(10)
    return future


def test_a_hang_lasts_until_it_is_cleared(
    node: SimulatedNode, nvml: SimulatedNvml, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "POLL_SECONDS", 0.001)
    gpu = nvml.device_by_index(3)
    node.hang(3, "memory_info")
    hung = started(pool, lambda: nvml.memory_info(gpu))
    assert nvml.uuid(gpu), "other calls of the GPU answer"
    assert not hung.done()
    node.clear_faults(3)
    assert hung.result(10) == nvml.memory_info(gpu)


def test_a_hang_of_one_call_leaves_the_next_alone(
    node: SimulatedNode, nvml: SimulatedNvml, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "POLL_SECONDS", 0.001)
    gpu = nvml.device_by_index(3)
    node.hang(3, times=1)
    hung = started(pool, lambda: nvml.uuid(gpu))
    while node.state().faults[0].times:
        pass
    assert nvml.uuid(gpu)
    assert not hung.done()
    node.clear_faults()
    assert hung.result(10)


def test_a_timed_hang_ends_by_itself_with_its_code(
    node: SimulatedNode, nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    gpu = nvml.device_by_index(3)
    node.hang(3, "uuid", seconds=5)
    assert nvml.uuid(gpu)
    node.clear_faults()
    document = json.loads(node.store.path.read_text())
    document["faults"] = [{"gpu": 3, "call": "uuid", "hang": 5, "code": "GPU_IS_LOST"}]
    node.store.path.write_text(json.dumps(document))
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.GPU_IS_LOST


def test_an_unknown_gpu_or_call_is_refused_with_the_nearest(node: SimulatedNode) -> None:
    with pytest.raises(FatalError, match="find GPU 9 of simulated dgx-h100: give a slot from 0 to 7"):
        node.inject_fault(9, "uuid", NvmlCode.UNKNOWN)
    with pytest.raises(ValueError, match="did you mean nvmlDeviceGetMemoryInfo"):
        node.inject_fault(3, "nvmlDeviceMemoryInfo", NvmlCode.UNKNOWN)
