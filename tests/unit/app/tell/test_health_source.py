"""Every look is one report with a higher number, for as many streams as there are."""

import asyncio

import pytest

from kubeletplugin.app.tell.health_source import LookReports
from kubeletplugin.dra.health import DeviceState, HealthReport
from kubeletplugin.inventory.model import Inventory
from tests.fakes.clock import VirtualClock
from tests.unit.cdi.machine import gpu

pytestmark = pytest.mark.anyio

DEVICES = (gpu(0), gpu(1), gpu(2))
UUIDS = [device.uuid for device in DEVICES]


class Source(LookReports):
    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__("node-a", self.clock)

    def look(self, answered: int = 3, lost: tuple[int, ...] = ()) -> None:
        self.looked(
            Inventory(
                "580.1",
                DEVICES,
                answered=frozenset(UUIDS[:answered]),
                lost=frozenset(UUIDS[index] for index in lost),
            )
        )


@pytest.fixture
def source() -> Source:
    return Source()


async def test_states_and_times(source: Source) -> None:
    source.look(answered=2, lost=(1,))
    report = await source.next_report(0)
    assert (report.cycle, report.made_at) == (1, source.clock.monotonic())
    assert [(status.pool, status.device, status.state) for status in report.statuses] == [
        ("node-a", "gpu-0", DeviceState.HEALTHY),
        ("node-a", "gpu-1", DeviceState.UNHEALTHY),
        ("node-a", "gpu-2", DeviceState.UNKNOWN),
    ]
    assert [bool(status.message) for status in report.statuses] == [False, True, True]
    assert {status.last_updated for status in report.statuses} == {int(source.clock.now().timestamp())}


async def test_a_look_that_confirms_is_a_new_report_with_a_new_time(source: Source) -> None:
    source.look()
    first = await source.next_report(0)
    await source.clock.advance(10)
    source.look()
    second = await source.next_report(first.cycle)
    assert second.cycle == first.cycle + 1
    assert second.made_at == first.made_at + 10
    assert [status.value() for status in second.statuses] == [status.value() for status in first.statuses]
    assert second.statuses[0].last_updated == first.statuses[0].last_updated + 10


async def test_every_stream_waits_for_the_next_look_and_a_late_one_gets_the_newest(source: Source) -> None:
    streams = [asyncio.create_task(source.next_report(0)) for _ in range(3)]
    await source.clock.settle()
    assert not any(stream.done() for stream in streams)
    source.look()
    source.look()
    reports: list[HealthReport] = await asyncio.gather(*streams, source.next_report(1))
    assert {report.cycle for report in reports} == {2}
    waiting = asyncio.create_task(source.next_report(2))
    await source.clock.settle()
    assert not waiting.done()
    waiting.cancel()


async def test_no_look_means_no_report(source: Source) -> None:
    """Silence is how the kubelet learns that nobody knows any more: no timer here may break it."""
    source.look()
    waiting = asyncio.create_task(source.next_report(1))
    await source.clock.advance(120)
    assert not waiting.done()
    waiting.cancel()
