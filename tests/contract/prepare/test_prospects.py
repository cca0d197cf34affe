"""What a look ahead says is what a Prepare then meets, and a look leaves nothing behind."""

import asyncio
from pathlib import Path

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.prospects import Prospect, State
from tests.contract.prepare.node import Agent, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def look(agent: Agent, ref: ClaimRef) -> Prospect:
    return await agent.manager.prospects.look(agent.world.claims[ref.namespace, ref.name])


async def test_a_free_device_is_ready_and_stays_free(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    assert await look(agent, ref) == Prospect(State.READY)
    assert await agent.holders() == {} and world.files == {}
    assert not (await agent.prepare_one(ref)).error
    assert await look(agent, ref) == Prospect(State.PREPARED, cdi_names=frozenset({"uid-a-gpu-0"}))
    await agent.stop()


async def test_what_is_prepared_but_for_its_file_is_ready_only(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    world.files.clear()
    assert (await look(agent, ref)).state is State.READY
    await agent.stop()


async def test_a_valid_hold_blocks_until_it_ends(world: World) -> None:
    agent = await Agent(world).start()
    old, new = world.allocate("old", "gpu-0"), world.allocate("new", "gpu-0")
    await agent.prepare_one(old)
    prospect = await look(agent, new)
    assert prospect == Prospect(State.BLOCKED, (await agent.prepare_one(new)).error)
    await agent.unprepare(old)
    assert (await look(agent, new)).state is State.READY
    assert not (await agent.prepare_one(new)).error
    await agent.stop()


async def test_a_draining_device_blocks(world: World) -> None:
    agent = await Agent(world).start()
    old, new = world.allocate("old", "gpu-0"), world.allocate("new", "gpu-0")
    await agent.prepare_one(old)
    world.processes["pod-old"] = {7}
    world.list_in_kubelet(old, "pod-old")
    await agent.unprepare(old)
    prospect = await look(agent, new)
    assert prospect.state is State.BLOCKED and prospect.reason.startswith("gpu-0 is draining")
    changes = world.changes
    world.processes.clear()
    await asyncio.sleep(1)
    assert world.changes > changes, "whoever waits hears that the drain is over"
    assert (await look(agent, new)).state is State.READY
    await agent.stop()


async def test_a_device_that_is_not_there_blocks(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    whole, world.inventory = world.inventory, Inventory("")
    assert (await look(agent, ref)).state is State.BLOCKED
    world.inventory = whole
    assert (await look(agent, ref)).state is State.READY
    await agent.stop()


async def test_a_claim_without_devices_of_ours(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.claims[ref.namespace, ref.name]["status"]["allocation"]["devices"]["results"][0]["driver"] = "nic.example.com"
    assert (await look(agent, ref)).state is State.FOREIGN
    world.deallocate(ref)
    assert (await look(agent, ref)).state is State.FOREIGN
    await agent.stop()


async def test_a_run_that_outlives_its_call_is_busy_then_prepared(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.write_error = RecoverableError("write CDI spec: read-only file system")
    prospects = agent.manager.prospects
    assert prospects.last_call(ref.namespace, ref.name) is None
    call = agent.begin(agent.prepare_one(ref, seconds=5))
    await asyncio.sleep(1)
    last = prospects.last_call(ref.namespace, ref.name)
    assert last is not None and last.error is None
    await asyncio.sleep(5)
    last = prospects.last_call(ref.namespace, ref.name)
    assert last is not None and last.error == call.result().error != ""
    assert (await look(agent, ref)).state is State.BUSY
    world.write_error = None
    await asyncio.sleep(2)
    assert (await look(agent, ref)).state is State.PREPARED
    assert not (await agent.prepare_one(ref)).error
    last = prospects.last_call(ref.namespace, ref.name)
    assert last is not None and last.error == ""
    assert last.at >= prospects.last_call_at
    await agent.unprepare(ref)
    assert prospects.last_call(ref.namespace, ref.name) is None
    await agent.stop()


async def test_calls_of_long_ago_are_forgotten(world: World) -> None:
    agent = await Agent(world).start()
    refs = [world.allocate(f"c{number}", "gpu-7") for number in range(3)]
    await agent.prepare(*refs)
    await asyncio.sleep(700)
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    assert [agent.manager.prospects.last_call(ref.namespace, ref.name) for ref in refs] == [None] * 3
    await agent.stop()
