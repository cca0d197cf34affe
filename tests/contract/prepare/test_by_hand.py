"""A person may end a drain, and nothing but a drain."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.ledger.model import HeldDevice, Hold
from kubeletplugin.prepare.by_hand import NotDrainingError, UnknownDeviceError
from kubeletplugin.prepare.model import PrepareResult
from kubeletplugin.prepare.ports import Look
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, answered

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def draining(world: World, device: str = "gpu-0") -> Agent:
    """Its process hangs."""
    agent = await Agent(world).start()
    old = world.allocate("old", device, pods=["pod-old"])
    await agent.prepare_one(old)
    world.processes["pod-old"] = {101, 102}
    await agent.unprepare(old)
    world.delete(old)
    return agent


async def ids(agent: Agent, device: str) -> list[int]:
    return [found.hold.id for found in await agent.manager.drains(device)]


@pytest.mark.parametrize("device", ["gpu-0", "GPU-0"])
async def test_what_is_left_is_shown_by_name_or_uuid(world: World, device: str) -> None:
    agent = await draining(world)
    (found,) = await agent.manager.drains(device)
    assert (found.hold.device.name, found.hold.holder.name) == ("gpu-0", "old")
    assert found.pids == {"pod-old": frozenset({101, 102})}
    assert found.reason == "2 processes of its former pods still running"
    await agent.stop()


async def test_the_claim_that_waits_goes_on_at_once(world: World) -> None:
    agent = await draining(world)
    call = agent.begin(agent.prepare_one(world.allocate("new", "gpu-0")))
    (ended,) = await agent.manager.release("gpu-0", await ids(agent, "gpu-0"))
    assert ended.pids == {"pod-old": frozenset({101, 102})}
    assert await call == PrepareResult((answered("gpu-0", "uid-new"),))
    assert await agent.draining() == {}
    await agent.stop()


async def test_it_survives_a_restart_of_the_agent(world: World) -> None:
    agent = await draining(world)
    await agent.manager.release("gpu-0", await ids(agent, "gpu-0"))
    await agent.crash()
    agent = await Agent(world).start()
    assert await agent.draining() == {}
    await agent.stop()


async def test_another_drain_than_the_one_shown_stays(world: World) -> None:
    agent = await draining(world)
    with pytest.raises(NotDrainingError, match="what was shown is over; look again"):
        await agent.manager.release("gpu-0", [12345])
    assert await agent.draining() == {"gpu-0": ["pod-old"]}
    await agent.stop()


async def test_an_id_that_was_shown_never_means_anothers_drain(world: World) -> None:
    agent = await draining(world)
    shown = await ids(agent, "gpu-0")
    world.processes.clear()
    await asyncio.sleep(5)
    other = world.allocate("other", "gpu-0", pods=["pod-other"])
    await agent.prepare_one(other)
    world.processes["pod-other"] = {201}
    await agent.unprepare(other)
    with pytest.raises(NotDrainingError, match="what was shown is over; look again"):
        await agent.manager.release("gpu-0", shown)
    assert await agent.draining() == {"gpu-0": ["pod-other"]}
    await agent.stop()


async def test_a_drain_that_ends_while_it_is_looked_at_wasnt_ended_by_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await draining(world)
    shown = await ids(agent, "gpu-0")
    end = agent.manager._drains.end

    async def end_second(hold: Hold) -> bool:
        assert await end(hold)
        return await end(hold)

    monkeypatch.setattr(agent.manager._drains, "end", end_second)
    with pytest.raises(NotDrainingError, match="what was shown is over; look again"):
        await agent.manager.release("gpu-0", shown)
    await agent.stop()


async def test_a_slow_look_doesnt_end_the_drain_that_came_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await draining(world)
    processes, looked = agent.manager._node.processes, asyncio.Event()
    look = processes.look

    async def slow(pods: Collection[str], devices: Collection[HeldDevice]) -> Look:
        found = await look(pods, devices)
        if "pod-old" in pods:
            await looked.wait()
        return found

    world.processes.clear()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "look", slow)
        await asyncio.sleep(1)
    await agent.manager.release("gpu-0", await ids(agent, "gpu-0"))
    other = world.allocate("other", "gpu-0", pods=["pod-other"])
    await agent.prepare_one(other)
    world.processes["pod-other"] = {201}
    await agent.unprepare(other)
    looked.set()
    await asyncio.sleep(0.01)
    assert await agent.draining() == {"gpu-0": ["pod-other"]}
    await agent.stop()


@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        ("gpu-1", NotDrainingError, "release gpu-1: it is held by claim ns/holder and not draining; delete the pods"),
        ("gpu-2", NotDrainingError, "release gpu-2: it is free, there is nothing to release"),
        ("gpu-12", UnknownDeviceError, r"release gpu-12: there is no such device on this node \(did you mean gpu-"),
        ("nothing", UnknownDeviceError, r"no such device on this node \(did you mean gpu-0, gpu-1, gpu-2\?\)"),
    ],
)
async def test_what_does_not_drain_is_refused(world: World, device: str, error: type[Exception], words: str) -> None:
    world = World(world.path, gpus=3)
    agent = await draining(world)
    await agent.prepare_one(world.allocate("holder", "gpu-1"))
    for ask in (agent.manager.drains(device), agent.manager.release(device, [1, 2, 3])):
        with pytest.raises(error, match=words):
            await ask
    assert await agent.draining() == {"gpu-0": ["pod-old"]}
    assert await agent.holders() == {"gpu-1": ["holder"]}
    await agent.stop()


async def test_only_the_active_instance_releases(world: World) -> None:
    agent = await draining(world)
    shown = await ids(agent, "gpu-0")
    await agent.manager.yield_()
    with pytest.raises(NotActiveError):
        await agent.manager.release("gpu-0", shown)
    await agent.stop()
