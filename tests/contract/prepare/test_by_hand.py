"""A person may end a drain, and nothing but a drain."""

from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError
from kubeletplugin.prepare.by_hand import NotDrainingError, UnknownDeviceError
from kubeletplugin.prepare.model import PrepareResult
from tests.contract.prepare.node import Agent, World, answered

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
    with pytest.raises(NotDrainingError, match="another drain has begun; look again"):
        await agent.manager.release("gpu-0", [12345])
    assert await agent.draining() == {"gpu-0": ["pod-old"]}
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
