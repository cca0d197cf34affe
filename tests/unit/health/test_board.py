"""Health verdicts: only what was seen, and not for longer than it is fresh."""

import asyncio
import datetime
from dataclasses import replace

import pytest

from kubeletplugin.health.board import NO_LOOK_YET, STALE, HealthBoard, HealthSnapshot
from kubeletplugin.health.verdict import LOST, NO_ANSWER, Health, Verdict, judge
from kubeletplugin.inventory.broadcast import Latest
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, MigIdentity
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

GPU = Device("gpu-0", DeviceKind.GPU, "GPU-a", "GPU-a", 0, 0, "0000:1b:00.0", {}, {})
PART = replace(
    GPU, name="gpu-1-mig-1g10gb-19-0", kind=DeviceKind.MIG, uuid="MIG-b", gpu_uuid="GPU-b",
    mig=MigIdentity("1g.10gb", 19, 0, 1, 7, 0),
)  # fmt: skip
GOOD = Inventory("580", (GPU, PART), answered=frozenset({"GPU-a", "GPU-b"}))


@pytest.mark.parametrize(
    ("device", "answered", "lost", "verdict"),
    [
        pytest.param(GPU, "GPU-a", "", Verdict(Health.HEALTHY), id="NVML answered"),
        pytest.param(PART, "GPU-b", "", Verdict(Health.HEALTHY), id="a partition answers through its GPU"),
        pytest.param(GPU, "GPU-b", "", Verdict(Health.UNKNOWN, NO_ANSWER), id="NVML did not answer"),
        pytest.param(
            replace(GPU, problem="it hangs"),
            "",
            "",
            Verdict(Health.UNKNOWN, "it hangs"),
            id="not answered, reason known",
        ),
        pytest.param(GPU, "", "GPU-a", Verdict(Health.UNHEALTHY, LOST), id="lost"),
        pytest.param(
            replace(PART, problem="fell off"),
            "",
            "GPU-b",
            Verdict(Health.UNHEALTHY, "fell off"),
            id="lost with its GPU",
        ),
        pytest.param(
            replace(PART, problem="destroyed"), "GPU-b", "", Verdict(Health.UNHEALTHY, "destroyed"), id="partition gone"
        ),
    ],
)
def test_judge(device: Device, answered: str, lost: str, verdict: Verdict) -> None:
    look = Inventory("580", (device,), answered=frozenset(answered.split()), lost=frozenset(lost.split()))
    assert judge(device, look) == verdict


def health(snapshot: HealthSnapshot) -> dict[str, str]:
    return {device.device_name: device.health for device in snapshot.devices}


def test_before_the_first_look_nothing_is_known() -> None:
    board = HealthBoard(VirtualClock())
    assert board.snapshot() == HealthSnapshot(0)
    assert board.verdict("gpu-0") == Verdict(Health.UNKNOWN, NO_LOOK_YET)


async def test_a_look_that_confirms_is_fresh_but_no_change() -> None:
    clock = VirtualClock()
    board = HealthBoard(clock)
    board.update(GOOD)
    first = board.snapshot()
    await clock.advance(10)
    board.update(GOOD)
    second = board.snapshot()
    assert (first.version, second.version) == (1, 1)
    ten = datetime.timedelta(seconds=10)
    assert [b.last_updated - a.last_updated for a, b in zip(first.devices, second.devices, strict=True)] == [ten, ten]
    assert [device.since for device in second.devices] == [device.since for device in first.devices]


async def test_a_verdict_changes_and_recovers() -> None:
    clock = VirtualClock()
    board = HealthBoard(clock)
    board.update(GOOD)
    await clock.advance(10)
    board.update(replace(GOOD, answered=frozenset({"GPU-a"})))
    sick = board.snapshot()
    assert health(sick) == {"gpu-0": "Healthy", PART.name: "Unknown"}
    assert sick.version == 2
    part = sick.by_name(PART.name)
    assert part is not None
    assert part.since == clock.now()
    board.update(GOOD)
    assert health(board.snapshot()) == {"gpu-0": "Healthy", PART.name: "Healthy"}
    assert board.snapshot().version == 3


def test_a_device_that_leaves_leaves_the_board() -> None:
    board = HealthBoard(VirtualClock())
    board.update(GOOD)
    board.update(replace(GOOD, devices=(GPU,)))
    assert health(board.snapshot()) == {"gpu-0": "Healthy"}
    assert board.verdict(PART.name).health is Health.UNKNOWN
    assert board.snapshot().version == 2


def test_a_name_that_moved_to_another_uuid_is_a_change() -> None:
    board = HealthBoard(VirtualClock())
    board.update(replace(GOOD, devices=(GPU,)))
    board.update(replace(GOOD, devices=(replace(GPU, uuid="GPU-b", gpu_uuid="GPU-b"),)))
    assert board.snapshot().version == 2


async def test_without_looks_every_verdict_turns_unknown_once() -> None:
    clock = VirtualClock()
    board = HealthBoard(clock)
    board.update(GOOD)
    await clock.advance(30)
    assert health(board.snapshot()) == {"gpu-0": "Healthy", PART.name: "Healthy"}
    await clock.advance(1)
    stale = board.snapshot()
    assert board.verdict("gpu-0") == Verdict(Health.UNKNOWN, STALE)
    assert stale.version == board.snapshot().version == 2
    board.update(GOOD)
    assert board.verdict("gpu-0") == Verdict(Health.HEALTHY)


async def test_an_empty_first_look_is_told_to_followers() -> None:
    board = HealthBoard(VirtualClock())
    changes = board.changes()
    board.update(Inventory("580"))
    assert (await anext(changes)).version == 1


async def test_watch_feeds_the_board_and_followers_see_changes_only() -> None:
    looks: Latest[Inventory] = Latest()
    board = HealthBoard(VirtualClock())
    watching = asyncio.create_task(board.watch(looks.follow()))
    changes = board.changes()
    looks.set(GOOD)
    assert health(await anext(changes)) == {"gpu-0": "Healthy", PART.name: "Healthy"}
    following = asyncio.ensure_future(anext(changes))
    looks.set(GOOD)
    await asyncio.sleep(0.01)
    assert not following.done()
    looks.set(replace(GOOD, answered=frozenset(), lost=frozenset({"GPU-a"})))
    assert health(await following) == {"gpu-0": "Unhealthy", PART.name: "Unknown"}
    watching.cancel()
