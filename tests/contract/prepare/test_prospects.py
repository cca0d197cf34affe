"""What a look ahead says is what a Prepare then meets; a look makes no request and leaves nothing behind."""

import asyncio
from pathlib import Path

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare import allocation as allocations
from kubeletplugin.prepare.bells import INVENTORY, claim_key
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.prospects import Prospect, State
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def look(agent: Agent, ref: ClaimRef) -> Prospect:
    world = agent.world
    allocation = allocations.read(world.claims[ref.namespace, ref.name])
    assert allocation is not None
    before = len(world.steps)
    prospect = await agent.manager.prospects.look(allocation)
    assert not [step for step in world.steps[before:] if step.startswith("get ")]
    return prospect


def hear(agent: Agent) -> set[str]:
    """What rings from now on."""
    heard: set[str] = set()
    agent.manager.prospects.listen(heard.update)
    return heard


A, GPU = claim_key("uid-a"), "GPU-0"


async def test_a_free_device_is_ready_and_stays_free(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    assert await look(agent, ref) == Prospect(State.READY, bells=frozenset({A, GPU}))
    assert await agent.holders() == {} and world.files == {}
    assert not (await agent.prepare_one(ref)).error
    assert await look(agent, ref) == Prospect(
        State.PREPARED, cdi_names=frozenset({"uid-a-gpu-0"}), bells=frozenset({A})
    )
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
    assert prospect.state is State.BLOCKED and prospect.reason == "gpu-0 is held by claim old"
    assert (await agent.prepare_one(new)).error.startswith(prospect.reason)
    heard = hear(agent)
    await agent.unprepare(old)
    assert prospect.bells & heard == {GPU}
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
    heard = hear(agent)
    world.processes.clear()
    await asyncio.sleep(1)
    assert prospect.bells & heard == {GPU}
    assert (await look(agent, new)).state is State.READY
    await agent.stop()


async def test_a_device_that_is_not_there_blocks(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    whole, world.inventory = world.inventory, Inventory("")
    prospect = await look(agent, ref)
    assert prospect.state is State.BLOCKED
    world.inventory = whole
    heard = hear(agent)
    agent.manager.inventory_changed()
    assert prospect.bells & heard == {INVENTORY}
    assert (await look(agent, ref)).state is State.READY
    await agent.stop()


async def test_a_claim_without_devices_of_ours(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.claims[ref.namespace, ref.name]["status"]["allocation"]["devices"]["results"][0]["driver"] = "nic.example.com"
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
    heard = hear(agent)
    await asyncio.sleep(5)
    assert heard == {A}, "the call was answered with an error"
    last = prospects.last_call(ref.namespace, ref.name)
    assert last is not None and last.error == call.result().error != ""
    assert (await look(agent, ref)).state is State.BUSY
    heard.clear()
    world.write_error = None
    await asyncio.sleep(2)
    assert heard == {A}
    assert (await look(agent, ref)).state is State.PREPARED
    assert not (await agent.prepare_one(ref)).error
    last = prospects.last_call(ref.namespace, ref.name)
    assert last is not None and last.error == ""
    assert last.at >= prospects.last_call_at
    await agent.unprepare(ref)
    assert prospects.last_call(ref.namespace, ref.name) is None
    await agent.stop()


async def test_what_is_known_of_a_claim_that_nobody_read(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    recall = agent.manager.prospects.recall
    assert await recall(ref.uid) == Prospect(State.READY, bells=frozenset({A}))
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(0.001)
    assert (await recall(ref.uid)).state is State.BUSY
    await call
    assert await recall(ref.uid) == await look(agent, ref)
    await agent.stop()


async def test_who_listens_no_longer_hears_nothing(world: World) -> None:
    agent = await Agent(world).start()
    heard: set[str] = set()
    agent.manager.prospects.listen(heard.update)()
    assert not (await agent.prepare_one(world.allocate("a", "gpu-0"))).error
    assert (await agent.prepare_one(world.allocate("b", "gpu-0"))).error
    assert heard == set()
    await agent.stop()


async def test_calls_of_long_ago_are_forgotten(world: World) -> None:
    agent = await Agent(world).start()
    refs = [world.allocate(f"c{number}", "gpu-7") for number in range(3)]
    await agent.prepare(*refs)
    await asyncio.sleep(700)
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    assert [agent.manager.prospects.last_call(ref.namespace, ref.name) for ref in refs] == [None] * 3
    await agent.stop()
