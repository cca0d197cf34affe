"""When an NVML session is begun anew, and that it is begun once."""

import threading
from dataclasses import dataclass, field

import pytest

from kubeletplugin.inventory.session import RENEW_SECONDS, RENEW_SECONDS_MAX, NvmlSession
from kubeletplugin.nvml.errors import NvmlCode, NvmlTimeoutError
from kubeletplugin.nvml.worker import SYSTEM_KEY, NvmlWorkers
from tests.fakes.clock import VirtualClock
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import InlineWorkers, until_idle
from tests.unit.inventory.watched import watching

pytestmark = pytest.mark.anyio

HOUR = 3600.0
LOST = {"GPU-a 15": "GPU 0 is lost"}


@dataclass
class Session:
    workers: InlineWorkers = field(default_factory=InlineWorkers)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.session = NvmlSession(None, self.workers, self.clock)  # type: ignore[arg-type]

    async def renewals(self, seconds: float, every: float, causes: dict[str, str]) -> int:
        """In looks ``every`` so many seconds, the first one now."""
        count = 0
        for _ in range(int(seconds // every)):
            count += bool(self.session.why_renew(causes))
            await self.clock.advance(every)
        return count


async def test_a_cause_that_stays_is_tried_ever_more_rarely_whatever_it_is_called() -> None:
    texts = ["nvmlDeviceGetUUID", "nvmlDeviceGetName"]
    session = Session()
    moments = []
    for number in range(360):
        if session.session.why_renew({"GPU-a 15": texts[number % 2]}):
            moments.append(number * 10)
        await session.clock.advance(10)
    assert moments == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]


@pytest.mark.parametrize("every", [20, 30, 60])
async def test_a_cause_that_comes_and_goes_is_no_more_often_tried(every: float) -> None:
    session = Session()
    moments = 0
    for _ in range(int(HOUR // every)):
        moments += bool(session.session.why_renew(LOST))
        await session.clock.advance(every / 2)
        assert session.session.why_renew({}) == ""
        await session.clock.advance(every / 2)
    assert moments <= 11


async def test_quiet_hours_bring_the_quick_cure_back() -> None:
    session = Session()
    assert await session.renewals(HOUR, 10, LOST) == 11
    await session.renewals(1.5 * HOUR, 10, {})
    assert await session.renewals(60, 10, LOST) == 3


async def test_after_a_short_quiet_it_stays_slow() -> None:
    session = Session()
    await session.renewals(HOUR, 10, LOST)
    await session.renewals(RENEW_SECONDS_MAX, 10, {})
    assert await session.renewals(60, 10, LOST) == 1


async def test_a_new_cause_is_tried_at_once_and_for_all() -> None:
    session = Session()
    assert session.session.why_renew(LOST) == "GPU 0 is lost"
    assert session.session.why_renew(LOST) == ""
    assert session.session.why_renew({**LOST, "GPU-b 15": "GPU 1 is lost"}) == "GPU 1 is lost"
    assert session.session.why_renew({"GPU-b 15": "GPU 1 is lost"}) == ""
    await session.clock.advance(RENEW_SECONDS)
    assert session.session.why_renew(LOST) == "", "the cure for the other was one for this too"


async def test_a_call_inside_nvml_delays_the_cure_and_takes_no_turn() -> None:
    session = Session()
    session.workers.busy = True
    assert session.session.why_renew(LOST) == ""
    session.workers.busy = False
    assert session.session.why_renew(LOST) == "GPU 0 is lost"


async def test_a_gpu_that_flaps_costs_the_others_few_sessions(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        for _ in range(30):
            watched.node.inject_fault(3, "uuid", NvmlCode.GPU_IS_LOST, times=1)
            await watched.clock.advance(20)
        assert 2 <= watched.session.generation <= 8


class SlowNvml:
    """Both calls last until they are let go."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.go = threading.Event()

    def init(self) -> None:
        self.calls.append("init")
        assert self.go.wait(30)

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        assert self.go.wait(30)


async def test_a_call_that_outlives_its_deadline_leaves_the_truth_behind() -> None:
    nvml, workers = SlowNvml(), NvmlWorkers(0.02)
    session = NvmlSession(nvml, workers, VirtualClock())  # type: ignore[arg-type]
    with pytest.raises(NvmlTimeoutError):
        await session.ensure()
    nvml.go.set()
    await until_idle(workers)
    await session.ensure()
    assert (nvml.calls, session.generation) == (["init"], 1), "NVML counts its users: one init, one shutdown"
    nvml.go.clear()
    assert not await session.end()
    with pytest.raises(NvmlTimeoutError):
        await workers.call(SYSTEM_KEY, len, "abc")
    nvml.go.set()
    await until_idle(workers)
    await session.ensure()
    assert (nvml.calls, session.generation) == (["init", "shutdown", "init"], 2)
    workers.close()
