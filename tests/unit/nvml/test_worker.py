"""Workers: a call that hangs costs its own key a verdict and nobody else anything."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError
from kubeletplugin.nvml.simulated import open_node
from kubeletplugin.nvml.worker import SYSTEM_KEY, NvmlWorkers

pytestmark = pytest.mark.anyio

SOON = 0.01
"""Deadline of calls that are meant to overrun it; all others have one that no test waits for."""


class Hang:
    """A call that returns when it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.released.wait(30)
        return "late"


@pytest.fixture
def workers() -> Iterator[NvmlWorkers]:
    workers = NvmlWorkers(deadline=30)
    yield workers
    workers.close()


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.released.set()


async def hung(workers: NvmlWorkers, hang: Hang, key: str = "gpu-3") -> None:
    with pytest.raises(NvmlTimeoutError) as raised:
        await workers.call(key, hang, timeout=SOON)
    assert raised.value.code == NvmlCode.TIMEOUT


async def until_free(workers: NvmlWorkers, key: str) -> None:
    def wait() -> None:
        while workers.stuck(key):
            time.sleep(0.001)

    await asyncio.to_thread(wait)


async def test_a_call_runs_in_the_thread_of_its_key(workers: NvmlWorkers) -> None:
    first = await workers.call("gpu-0", threading.current_thread)
    again = await workers.call("gpu-0", threading.current_thread)
    other = await workers.call("gpu-1", threading.current_thread)
    assert first is again
    assert first is not other
    assert first.daemon
    assert first is not threading.main_thread()


async def test_results_arguments_errors_and_context_pass_through(workers: NvmlWorkers) -> None:
    field = contextvars.ContextVar("field", default="")
    field.set("claim")
    assert await workers.call("gpu-0", divmod, 7, 2) == (3, 1)
    assert await workers.call("gpu-0", field.get) == "claim"

    def lost() -> None:
        raise NvmlError(NvmlCode.GPU_IS_LOST, "nvmlDeviceGetUUID")

    with pytest.raises(NvmlError, match="GPU_IS_LOST"):
        await workers.call("gpu-0", lost)
    assert await workers.call("gpu-0", len, "abc") == 3


async def test_a_hung_call_fails_its_caller_and_all_that_follow_at_once(workers: NvmlWorkers, hang: Hang) -> None:
    await hung(workers, hang)
    assert workers.stuck("gpu-3")
    with pytest.raises(NvmlTimeoutError, match="hasn't come back from an earlier call"):
        await workers.call("gpu-3", len, "abc")
    assert await workers.call("gpu-4", len, "abc") == 3
    assert await workers.call(SYSTEM_KEY, len, "abc") == 3


async def test_a_hung_call_that_returns_frees_its_worker(workers: NvmlWorkers, hang: Hang) -> None:
    await hung(workers, hang)
    hang.released.set()
    await until_free(workers, "gpu-3")
    assert await workers.call("gpu-3", len, "abc") == 3


async def test_one_hung_gpu_holds_one_thread(workers: NvmlWorkers, hang: Hang) -> None:
    await hung(workers, hang)
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(NvmlTimeoutError):
            await workers.call("gpu-3", len, "abc")
    assert threading.active_count() == before


async def test_those_in_line_behind_a_hung_call_are_told_when_it_is_found_out(workers: NvmlWorkers, hang: Hang) -> None:
    made: list[str] = []
    first = asyncio.create_task(workers.call("gpu-3", hang, timeout=0.05))
    await asyncio.to_thread(hang.started.wait, 30)
    second = asyncio.create_task(workers.call("gpu-3", made.append, "second"))
    with pytest.raises(NvmlTimeoutError, match=r"gave no answer within 0\.05 s"):
        await first
    with pytest.raises(NvmlTimeoutError, match="hasn't come back from an earlier call"):
        await second
    hang.released.set()
    await until_free(workers, "gpu-3")
    await workers.call("gpu-3", made.append, "third")
    assert made == ["third"], "a call that was refused is not made"


async def test_a_call_that_waits_too_long_in_line_says_nothing_of_the_one_before(
    workers: NvmlWorkers, hang: Hang
) -> None:
    made: list[str] = []
    first = asyncio.create_task(workers.call("gpu-3", hang))
    await asyncio.to_thread(hang.started.wait, 30)
    patient = asyncio.create_task(workers.call("gpu-3", made.append, "patient"))
    with pytest.raises(NvmlTimeoutError, match="gave no answer"):
        await workers.call("gpu-3", made.append, "hasty", timeout=SOON)
    assert not workers.stuck("gpu-3")
    later = asyncio.create_task(workers.call("gpu-3", made.append, "later"))
    await asyncio.sleep(0)
    hang.released.set()
    assert await first == "late"
    await asyncio.gather(patient, later)
    assert made == ["patient", "later"]


async def test_a_call_whose_caller_is_gone_is_found_out_too(workers: NvmlWorkers, hang: Hang) -> None:
    first = asyncio.create_task(workers.call("gpu-3", hang, timeout=SOON))
    await asyncio.to_thread(hang.started.wait, 30)
    first.cancel()
    await asyncio.sleep(2 * SOON)
    with pytest.raises(NvmlTimeoutError, match="earlier call"):
        await workers.call("gpu-3", len, "abc")


async def test_busy_while_any_call_is_inside_nvml(workers: NvmlWorkers, hang: Hang) -> None:
    assert not workers.busy
    first = asyncio.create_task(workers.call("gpu-3", hang))
    await asyncio.to_thread(hang.started.wait, 30)
    await workers.call("gpu-4", len, "abc")
    assert (workers.busy, workers.stuck("gpu-3")) == (True, False)
    hang.released.set()
    await first
    assert not workers.busy


async def test_a_cancelled_caller_takes_its_call_out_of_the_line(workers: NvmlWorkers, hang: Hang) -> None:
    made: list[str] = []
    first = asyncio.create_task(workers.call("gpu-3", hang))
    await asyncio.to_thread(hang.started.wait, 30)
    second = asyncio.create_task(workers.call("gpu-3", made.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    hang.released.set()
    await first
    await workers.call("gpu-3", made.append, "third")
    assert made == ["third"]


async def test_the_line_is_bounded(hang: Hang) -> None:
    workers = NvmlWorkers(deadline=30, queue_length=2)
    first = asyncio.create_task(workers.call("gpu-3", hang))
    await asyncio.to_thread(hang.started.wait, 30)
    waiting = [asyncio.create_task(workers.call("gpu-3", len, "abc")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NvmlTimeoutError, match="too many NVML calls"):
        await workers.call("gpu-3", len, "abc")
    hang.released.set()
    assert await asyncio.gather(first, *waiting) == ["late", 3, 3]
    workers.close()


async def test_close_waits_for_nobody(hang: Hang) -> None:
    workers = NvmlWorkers(deadline=30)
    first = asyncio.create_task(workers.call("gpu-3", hang))
    await asyncio.to_thread(hang.started.wait, 30)
    second = asyncio.create_task(workers.call("gpu-3", len, "abc"))
    await asyncio.sleep(0)
    workers.close()
    with pytest.raises(NvmlTimeoutError):
        await second
    assert not first.done()
    with pytest.raises(RuntimeError, match="closed"):
        await workers.call("gpu-4", len, "abc")
    hang.released.set()
    assert await first == "late"


async def test_a_forgotten_worker_ends_and_a_new_one_begins(workers: NvmlWorkers) -> None:
    thread = await workers.call("gpu-3", threading.current_thread)
    workers.forget("gpu-3")
    workers.forget("gpu-4")
    await asyncio.to_thread(thread.join, 30)
    assert not thread.is_alive()
    assert await workers.call("gpu-3", len, "abc") == 3


async def test_a_simulated_hang_is_survived(workers: NvmlWorkers, tmp_path: Path) -> None:
    node = open_node("dgx-h100", tmp_path)
    nvml = node.nvml()
    await workers.call(SYSTEM_KEY, nvml.init)
    gpus = [await workers.call(SYSTEM_KEY, nvml.device_by_index, index) for index in range(8)]
    node.hang(3)
    with pytest.raises(NvmlTimeoutError):
        await workers.call("gpu-3", nvml.uuid, gpus[3], timeout=SOON)
    answers = [await workers.call(f"gpu-{index}", nvml.uuid, gpu) for index, gpu in enumerate(gpus) if index != 3]
    assert len(set(answers)) == 7
    node.clear_faults()
    await until_free(workers, "gpu-3")
    assert await workers.call("gpu-3", nvml.uuid, gpus[3]) not in answers
