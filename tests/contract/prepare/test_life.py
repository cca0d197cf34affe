"""Giving way to another instance, and what people are shown."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.inventory.model import WithheldGpu
from kubeletplugin.ledger.files import read_snapshot
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import PREFIX, File, World, now

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_10_yielding_stops_waits_at_once_and_passes_the_calls_on(world: World) -> None:
    """Story 10: a yield doesn't wait for a Prepare that waits for what the next holder is going to be told."""
    agent = await Agent(world).start()
    held, waiting = world.allocate("held", "gpu-0"), world.allocate("waiting", "gpu-0")
    await agent.prepare_one(held)
    world.list_in_kubelet(held, "pod-held", ids=[f"{PREFIX}uid-held-gpu-0"])
    world.deallocate(held)
    call = agent.begin(agent.prepare_one(waiting))
    await asyncio.sleep(1)
    begun = now()

    await agent.stop()

    assert now() - begun < 0.1
    with pytest.raises(NotActiveError):
        await call
    with pytest.raises(NotActiveError):
        await agent.prepare_one(waiting)
    with pytest.raises(NotActiveError):
        await agent.unprepare(held)
    following = await Agent(world).start()
    again = following.begin(following.prepare_one(waiting))
    assert await following.unprepare(held) == ""
    assert not (await again).error
    await following.stop()


@pytest.mark.parametrize("milliseconds", range(12))
async def test_10_yielding_outwaits_what_changes_something(world: World, milliseconds: int) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(milliseconds / 1000)
    await agent.stop()
    steps = len(world.steps)
    outcome = (await asyncio.gather(call, return_exceptions=True))[0]
    await asyncio.sleep(5)
    assert len(world.steps) <= steps + 1  # the fence of the answer itself
    recorded = [claim.uid for claim in read_snapshot(agent.ledger.path).claims]
    assert sorted(world.files) == recorded
    following = await Agent(world).start()
    if isinstance(outcome, PrepareResult):
        assert world.gpu_of(ref) == {"GPU-0"}
    else:
        assert isinstance(outcome, NotActiveError)
    await following.stop()


async def test_status_tells_devices_holders_and_what_is_waited_for(world: World) -> None:
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    world.inventory = dataclasses.replace(world.inventory, withheld=(WithheldGpu(9, "GPU-9", "", "excluded", True),))
    agent.begin(agent.prepare_one(world.allocate("b", "gpu-9")))
    await asyncio.sleep(0.5)

    status = await agent.manager.status()

    assert status["devices"] == [
        {
            "name": "gpu-0",
            "uuid": "GPU-0",
            "state": "held",
            "problem": "",
            "holders": [
                {
                    "route": "claim",
                    "uid": "uid-a",
                    "namespace": "ns",
                    "name": "a",
                    "state": "held",
                    "since": "2026-01-02T03:04:05+00:00",
                    "reason": "",
                    "admin": False,
                    "shareId": "",
                    "pods": ["pod-a"],
                }
            ],
        },
        {"name": "gpu-1", "uuid": "GPU-1", "state": "free", "problem": "", "holders": []},
    ]
    assert status["withheld"][0]["reason"] == "excluded"
    assert status["waiting"] == [
        {
            "claim": {"uid": "uid-b", "namespace": "ns", "name": "b"},
            "for": "device gpu-9 isn't there; it may be of GPU 9, which is withheld: excluded",
        }
    ]
    await agent.stop()


async def test_without_the_lease_a_call_is_passed_on(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")

    def lose() -> None:
        raise NotActiveError("lease lost")

    world.at("fence", lose)
    with pytest.raises(NotActiveError):
        await agent.prepare_one(a)
    assert world.files == {}
    await agent.prepare_one(a)
    world.at("fence", lambda: world.at("fence", lose))
    with pytest.raises(NotActiveError):
        await agent.unprepare(a)
    await agent.stop()


async def test_a_file_without_a_row_goes_unless_the_kubelet_may_need_it(world: World) -> None:
    """Rows are written before files and go after them, so only a lost ledger leaves such a file."""
    ref = ClaimRef("uid-listed", "ns", "listed")
    world.files = {uid: File({f"{uid}-gpu-0": "GPU-0"}, "boot-1") for uid in ("uid-listed", "uid-stray")}
    world.list_in_kubelet(ref, "pod-listed", ids=["uid-listed-gpu-0"])
    agent = await Agent(world).start()
    assert list(world.files) == ["uid-listed"]
    await agent.stop()


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [NotActiveError("open the lease: too many open files"), OSError(5, "I/O error")])
@pytest.mark.parametrize("step", ["look", "read kubelet's list"])
async def test_standing_work_outlives_what_goes_wrong_once(world: World, step: str, error: Exception) -> None:
    """One look or sweep that fails must not end all later ones: holds would be for ever, and nothing would show it."""
    agent = await Agent(world).start()
    a, b = world.allocate("a", "gpu-0"), world.allocate("b", "gpu-1")
    await agent.prepare(a, b)
    world.processes["pod-a"] = {1}
    assert await agent.unprepare(a) == ""
    world.delete(b)
    world.at(step, lambda: _raise(error))

    await asyncio.sleep(31)
    world.processes.clear()
    await asyncio.sleep(40)

    assert not agent.background.done()
    assert (await agent.draining(), await agent.holders()) == ({}, {})
    await agent.stop()


@pytest.mark.parametrize("work", ["sweep", "drains"])
async def test_standing_work_ends_with_the_lease(world: World, work: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    if work == "drains":
        world.processes["pod-a"] = {1}
        assert await agent.unprepare(a) == ""
        await asyncio.sleep(0.5)
        world.processes.clear()
    else:
        world.delete(a)
    world.lease_lost = True
    world.at("fence", lambda: _raise(NotActiveError("epoch 1 is over")))
    await asyncio.sleep(31)
    with pytest.raises(NotActiveError):
        agent.background.result()
    await agent.stop()


async def test_claims_that_come_and_go_without_a_call_are_told_of(world: World) -> None:
    agent = await Agent(world).start()
    old, new = world.allocate("old", "gpu-0"), world.allocate("new", "gpu-0")
    await agent.prepare_one(old)
    assert world.changes == 1
    world.list_in_kubelet(old, "pod-old")
    world.deallocate(old)
    await agent.prepare_one(new, seconds=1)
    assert world.changes == 1
    world.kubelet.clear()
    await asyncio.sleep(1.1)
    assert await agent.holders() == {"gpu-0": ["new"]}
    assert world.changes == 3
    assert world.counts["holds ended"] == 1
    await agent.stop()
