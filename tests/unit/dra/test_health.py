"""What one health stream sends, on a virtual clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeletplugin.dra.health import (
    MAX_MESSAGE_BYTES,
    DeviceState,
    DeviceStatus,
    HealthGate,
    HealthReport,
    HealthStreams,
    cut,
)
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


def status(state: DeviceState = DeviceState.HEALTHY, message: str = "", updated: int = 1) -> DeviceStatus:
    return DeviceStatus("node-1", "gpu-0", state, message, updated)


class Prober:
    """Looks when told to."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._report: HealthReport | None = None
        self._news = asyncio.Event()

    def look(self, *statuses: DeviceStatus) -> None:
        cycle = self._report.cycle + 1 if self._report is not None else 1
        self._report = HealthReport(cycle, statuses, self._clock.monotonic())
        self._news.set()
        self._news = asyncio.Event()

    async def next_report(self, after: int) -> HealthReport:
        while self._report is None or self._report.cycle <= after:
            await self._news.wait()
        return self._report


class Stream:
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.prober = Prober(clock)
        self.gate = HealthGate()
        self.sent: list[HealthReport] = []
        self.ended = False

    async def read(self) -> None:
        async for report in HealthStreams(self.prober, self.gate, self.clock).reports():
            self.sent.append(report)
        self.ended = True

    async def cycles(self) -> list[int]:
        await self.clock.settle()
        return [report.cycle for report in self.sent]


@asynccontextmanager
async def open_stream(*, active: bool = True) -> AsyncIterator[Stream]:
    stream = Stream(VirtualClock())
    stream.gate.set_active(active)
    reader = asyncio.create_task(stream.read())
    try:
        yield stream
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def test_first_message_is_the_first_look_then_changes_only() -> None:
    async with open_stream() as stream:
        assert await stream.cycles() == []
        stream.prober.look(status())
        assert await stream.cycles() == [1]
        stream.prober.look(status(updated=2))
        assert await stream.cycles() == [1]
        stream.prober.look(status(DeviceState.UNHEALTHY, "Xid 79", updated=3))
        assert await stream.cycles() == [1, 3]


async def test_unchanged_values_go_out_again_after_a_third_of_their_lease_but_only_with_a_new_look() -> None:
    async with open_stream() as stream:
        stream.prober.look(status())
        await stream.clock.advance(9)
        stream.prober.look(status())
        assert await stream.cycles() == [1]
        await stream.clock.advance(300)
        assert await stream.cycles() == [1]
        stream.prober.look(status())
        assert await stream.cycles() == [1, 3]


async def test_a_standby_stays_silent_and_its_stream_open() -> None:
    async with open_stream(active=False) as stream:
        stream.prober.look(status())
        assert await stream.cycles() == []
        assert not stream.ended
        stream.gate.set_active(True)
        assert await stream.cycles() == [1]
        stream.gate.set_active(False)
        stream.prober.look(status(DeviceState.UNKNOWN))
        assert await stream.cycles() == [1]
        assert not stream.ended
        stream.gate.set_active(True)
        assert await stream.cycles() == [1, 2]


async def test_resend_repeats_the_newest_look_while_it_is_fresh() -> None:
    async with open_stream() as stream:
        stream.prober.look(status())
        assert await stream.cycles() == [1]
        stream.gate.resend()
        assert await stream.cycles() == [1, 1]
        await stream.clock.advance(11)
        stream.gate.resend()
        assert await stream.cycles() == [1, 1]
        stream.prober.look(status())
        assert await stream.cycles() == [1, 1, 2]


async def test_a_new_stream_never_gets_a_look_that_is_old() -> None:
    stream = Stream(VirtualClock())
    stream.gate.set_active(True)
    stream.prober.look(status())
    await stream.clock.advance(11)
    reader = asyncio.create_task(stream.read())
    assert await stream.cycles() == []
    stream.prober.look(status())
    assert await stream.cycles() == [2]
    reader.cancel()


async def test_end_ends_the_stream_also_of_a_standby() -> None:
    for active in (True, False):
        async with open_stream(active=active) as stream:
            await stream.cycles()
            stream.gate.end()
            await stream.clock.settle()
            assert stream.ended


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "..."),
        ("é" * 512, "é" * 512),
        ("é" * 600, "é" * 510 + "..."),
        ("x" + "é" * 600, "x" + "é" * 510 + "..."),
        ("\N{COLLISION SYMBOL}" * 300, "\N{COLLISION SYMBOL}" * 255 + "..."),
    ],
)
def test_messages_are_cut_between_characters(message: str, expected: str) -> None:
    assert cut(message) == expected
    assert len(cut(message).encode()) <= MAX_MESSAGE_BYTES
