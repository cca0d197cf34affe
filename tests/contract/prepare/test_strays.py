"""A ledger that was begun while claims were prepared: nothing of theirs is given to others, and what is over ends."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from kubeapi import errors as api_errors
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.preparer import LONGEST_SECONDS
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, answered, full_gpu, now, result

pytestmark = pytest.mark.anyio

SWEEP = 31.0
SHARE = "0f6e1bbb-6b4c-4c0b-9a55-0123456789ab"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def _lose_the_ledger(world: World, *, listed: bool = True) -> tuple[Agent, ClaimRef]:
    """A claim on gpu-0 whose pod runs; then the ledger is gone, and the agent not started yet."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    if listed:
        world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    world.processes["pod-a"] = {1}
    await agent.stop()
    for path in world.path.glob("ledger.db*"):
        path.unlink()
    return Agent(world), a


@pytest.mark.parametrize("ended_by", ["Unprepare", "check"])
async def test_a_device_of_a_running_pod_waits_for_it_without_any_record(world: World, ended_by: str) -> None:
    agent, a = await _lose_the_ledger(world)
    world.delete(a)
    await agent.start()
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(5)
    assert not call.done()

    world.processes.clear()
    if ended_by == "Unprepare":
        assert await agent.unprepare(a) == ""
    del world.kubelet[a.uid]
    await asyncio.sleep(LONGEST_SECONDS + 0.1)

    assert call.result() == PrepareResult((answered("gpu-0", "uid-b"),))
    assert list(world.files) == ["uid-b"]
    await agent.stop()


async def test_a_pod_that_lives_on_keeps_its_device_draining(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.delete(a)
    await agent.start()
    assert await agent.unprepare(a) == ""
    assert await agent.draining() == {"gpu-0": ["pod-a"]}
    await agent.stop()


async def test_what_only_the_device_tells_of_is_waited_for_too(world: World) -> None:
    agent, a = await _lose_the_ledger(world, listed=False)
    world.delete(a)
    world.on_device["GPU-0"] = {"pod-a": frozenset({1})}
    await agent.start()
    assert world.files == {}
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(5)
    assert not call.done()
    assert not (await agent.prepare_one(world.allocate("c", "gpu-1"))).error

    world.on_device.clear()
    await asyncio.sleep(2.1)

    assert not call.result().error
    await agent.stop()


async def test_a_claim_that_stands_is_prepared_again_over_it(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.on_device["GPU-0"] = {"pod-a": frozenset({1})}
    world.api_error = api_errors.Unreachable("connection refused")
    await agent.start()
    assert await agent.holders() == {"gpu-0": ["a"]}
    assert world.gpu_of(a) == {"GPU-0"}
    world.api_error = None
    await asyncio.sleep(SWEEP)

    record = await agent.ledger.claim(a.uid)
    assert record is not None
    assert record.fingerprint
    assert (world.counts["sweeps"], world.counts["healed"]) == (1, 1)
    assert (await agent.holders(), await agent.draining()) == ({"gpu-0": ["a"]}, {})
    assert await agent.prepare_one(a) == PrepareResult((answered("gpu-0", "uid-a"),))
    await agent.stop()


async def test_one_that_moved_meanwhile_leaves_its_old_device_draining(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.allocate("a", "gpu-1", pods=["pod-2"])
    await agent.start()
    assert not (await agent.prepare_one(a)).error
    assert await agent.holders() == {"gpu-1": ["a"]}
    assert await agent.draining() == {"gpu-0": ["pod-a"]}
    await agent.stop()


async def test_shares_of_a_device_are_no_hindrance_to_each_other(world: World) -> None:
    other = SHARE.replace("0f6e", "1f6e")
    refs = [world.allocate(name, result("gpu-0", shareID=share)) for name, share in (("a", SHARE), ("b", other))]
    for ref, share in zip(refs, (SHARE, other), strict=True):
        world.list_in_kubelet(ref, f"pod-{ref.name}", ids=[f"{ref.uid}-gpu-0-{share}"])
    agent = await Agent(world).start()
    await asyncio.sleep(SWEEP)
    assert await agent.prepare_one(refs[0]) == PrepareResult((answered("gpu-0", "uid-a", share=SHARE),))
    assert {record.uid for record in await agent.ledger.claims() if record.fingerprint} == {"uid-a", "uid-b"}
    await agent.stop()


async def test_it_happens_before_the_first_commit_also_when_the_driver_is_late(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.delete(a)
    whole, world.inventory = world.inventory, Inventory("")
    await agent.start()
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(1)
    world.inventory = dataclasses.replace(whole)
    agent.manager.inventory_changed()
    await asyncio.sleep(5)
    assert not call.done()
    assert await agent.holders() == {"gpu-0": ["a"]}
    await agent.stop()


async def test_one_that_the_kubelet_was_about_to_strike_off_is_ended_by_a_check(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    world.delete(a)
    assert await agent.unprepare(a) == ""
    await agent.stop()
    agent = await Agent(world).start()
    assert await agent.holders() == {"gpu-0": ["a"]}
    del world.kubelet[a.uid]
    assert not (await agent.prepare_one(world.allocate("b", "gpu-0"))).error
    await agent.stop()


@pytest.mark.parametrize("ledger", ["kept", "lost"])
async def test_nothing_is_opened_beside_a_claim_that_got_the_device_since(world: World, ledger: str) -> None:
    """Unprepare was done and its answer lost, so the kubelet lists the older claim still: a pod that it starts with it
    (one that joined meanwhile, by the kubelet's own fault) must not get the device of the newer one."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    assert await agent.unprepare(a) == ""
    world.deallocate(a)
    b = world.allocate("b", "gpu-0")
    await agent.prepare_one(b)
    world.list_in_kubelet(b, "pod-b", ids=["uid-b-gpu-0"])
    await agent.crash()
    if ledger == "lost":
        for path in world.path.glob("ledger.db*"):
            path.unlink()

    following = await Agent(world).start()

    assert world.gpu_of(a) == set()
    assert await following.holders() == {"gpu-0": ["b"] if ledger == "kept" else ["a", "b"]}
    del world.kubelet[a.uid]
    await asyncio.sleep(2 * SWEEP)
    assert await following.holders() == {"gpu-0": ["b"]}
    assert list(world.files) == ["uid-b"]
    await following.stop()


async def test_what_another_driver_prepared_meanwhile_is_taken_in_by_an_old_ledger(world: World) -> None:
    await (await Agent(world).start()).stop()
    a = world.allocate("a", "gpu-0")
    world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    world.processes["pod-a"] = {1}
    world.delete(a)
    agent = await Agent(world).start()
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(5)
    assert not call.done()
    await agent.stop()


@pytest.mark.parametrize("unprepared", [False, True])
async def test_a_gpu_that_comes_late_is_looked_at_before_it_is_given(world: World, unprepared: bool) -> None:
    agent, a = await _lose_the_ledger(world)
    world.delete(a)
    whole = world.inventory
    world.inventory = Inventory("580.0", tuple(d for d in whole.devices if d.name != "gpu-0"))
    await agent.start()
    if unprepared:
        world.on_device["GPU-0"] = {"pod-a": frozenset({1})}
        assert await agent.unprepare(a) == ""
        del world.kubelet[a.uid]
    world.inventory = dataclasses.replace(whole)
    agent.manager.inventory_changed()
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(5)
    assert not call.done()
    await agent.stop()


async def test_a_list_that_could_not_be_read_is_read_again(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.delete(a)
    world.kubelet_unreadable = "permission denied"
    await agent.start()
    assert await agent.holders() == {}
    world.kubelet_unreadable = ""
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(5)
    assert not call.done()
    assert await agent.holders() == {"gpu-0": ["a"]}
    await agent.stop()


async def test_a_hanging_api_server_holds_up_no_take_over(world: World) -> None:
    """With the calls of other claims waiting, and an instance that is to yield meanwhile."""
    world.inventory = Inventory("580.0", tuple(full_gpu(index) for index in range(8)))
    for index in range(8):
        ref = world.allocate(f"c{index}", f"gpu-{index}")
        world.list_in_kubelet(ref, f"pod-{ref.name}", ids=[f"{ref.uid}-gpu-{index}"])
    world.api_error, world.api_delay = api_errors.Unreachable("timed out"), 30.0
    begun = now()
    agent = await Agent(world).start()
    assert len(await agent.holders()) == 8
    await asyncio.sleep(0.1)
    await agent.stop()
    assert now() - begun < 1

    agent = await Agent(world).start()
    await agent.manager.sweep()
    assert now() - begun < 35
    await agent.stop()


async def test_only_what_could_not_be_told_is_taken_in_later(world: World) -> None:
    """A claim whose device isn't here is no reason to take one in that this agent has unprepared, which the kubelet
    lists for a moment longer; nor to look at everything before each Prepare."""
    world.list_in_kubelet(world.allocate("far", "gpu-9"), "pod-far", ids=["uid-far-gpu-9"])
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    await agent.unprepare(a)
    world.deallocate(a)
    world.steps.clear()
    await agent.prepare_one(world.allocate("b", "gpu-1"))
    assert await agent.holders() == {"gpu-1": ["b"]}
    assert world.steps.count("read kubelet's list") == 1
    world.inventory = Inventory("580.0", (*world.inventory.devices, full_gpu(9)))
    await agent.prepare_one(world.allocate("c", "gpu-0"))
    assert await agent.holders() == {"gpu-0": ["c"], "gpu-1": ["b"], "gpu-9": ["far"]}
    await agent.stop()


async def test_one_that_was_unprepared_while_the_list_was_unreadable_is_not_taken_in(world: World) -> None:
    agent, a = await _lose_the_ledger(world)
    world.kubelet_unreadable = "permission denied"
    await agent.start()
    world.processes.clear()
    assert await agent.unprepare(a) == ""
    world.deallocate(a)
    world.kubelet_unreadable = ""
    await agent.prepare_one(world.allocate("b", "gpu-1"))
    assert await agent.holders() == {"gpu-1": ["b"]}
    await agent.stop()
