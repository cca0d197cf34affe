"""How holds end: Unprepare, and what is left after it."""

import asyncio
from pathlib import Path

import pytest

from kubeapi import errors as api_errors
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, answered, now, result

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_unprepare_removes_the_file_then_looks_then_commits(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    world.steps.clear()

    assert await agent.unprepare(ref) == ""

    assert world.steps == ["remove uid-a", "read kubelet's list", "look", "fence", "read kubelet's list", "fence"]
    assert (await agent.holders(), await agent.draining(), world.files) == ({}, {}, {})
    await agent.stop()


async def test_unprepare_of_an_unknown_claim_is_success_without_the_api(world: World) -> None:
    agent = await Agent(world).start()
    world.api_error = api_errors.Unreachable("connection refused")
    assert await agent.unprepare(ClaimRef("nobody", "ns", "nobody")) == ""
    await agent.stop()


async def test_unprepare_succeeds_while_processes_are_left_and_the_next_claim_waits_for_them(world: World) -> None:
    agent = await Agent(world).start()
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.processes["pod-old"] = {101, 102}
    assert await agent.unprepare(old) == ""
    assert await agent.draining() == {"gpu-0": ["pod-old"]}
    call = agent.begin(agent.prepare_one(world.allocate("new", "gpu-0")))
    await asyncio.sleep(2.1)
    assert not call.done()

    world.processes.clear()
    await asyncio.sleep(0.35)

    assert call.result() == PrepareResult((answered("gpu-0", "uid-new"),))
    assert await agent.draining() == {}
    await agent.stop()


async def test_a_draining_device_says_why_and_a_person_hears_of_it_after_ten_minutes(world: World) -> None:
    agent = await Agent(world).start()
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.processes["pod-old"] = {101}
    await agent.unprepare(old)

    answer = await agent.prepare_one(world.allocate("new", "gpu-0"), seconds=5)

    reason = "1 process of its former pods still running"
    assert answer.error == f"still waiting: gpu-0 is draining: {reason}"
    assert world.notices == []
    await asyncio.sleep(600)
    assert world.notices == [("drain overdue", "gpu-0", "pod-old", reason)]
    looks = world.steps.count("look")
    await asyncio.sleep(600)
    assert world.steps.count("look") - looks <= 301
    world.processes.clear()
    await asyncio.sleep(3)
    assert world.notices[1:] == [("drain over", "gpu-0")]
    looks = world.steps.count("look")
    await asyncio.sleep(600)
    assert world.steps.count("look") == looks
    await agent.stop()


async def test_a_look_that_cannot_see_is_not_an_empty_one(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0", "gpu-1")
    await agent.prepare_one(ref)
    world.blind_devices = {"GPU-1": "NVML didn't answer"}
    assert await agent.unprepare(ref) == ""
    assert await agent.draining() == {"gpu-1": []}
    world.blind_devices = {}
    await asyncio.sleep(0.3)
    assert await agent.draining() == {}

    await agent.prepare_one(ref)
    world.blind = "no kubepods cgroup"
    await agent.unprepare(ref)
    assert await agent.draining() == {"gpu-0": ["pod-a"], "gpu-1": ["pod-a"]}
    status = await agent.manager.status()
    assert status["devices"][0]["holders"][0]["reason"] == ("can't see whether processes are left (no kubepods cgroup)")
    await agent.stop()


async def test_any_pods_process_on_the_device_counts_but_for_those_that_share_it_rightly(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    watcher = world.allocate("watcher", result("gpu-0", adminAccess=True), pods=["pod-watcher"])
    await agent.prepare(ref, watcher)
    world.on_device["GPU-0"] = {"pod-watcher": frozenset({7}), "pod-unknown": frozenset({8})}

    await agent.unprepare(ref)

    assert await agent.draining() == {"gpu-0": []}
    await asyncio.sleep(60)
    assert await agent.draining() == {"gpu-0": []}
    # It lives on, but not on the device, and it never had the claim.
    world.on_device["GPU-0"] = {"pod-watcher": frozenset({7})}
    world.processes["pod-unknown"] = {8}
    await asyncio.sleep(0.3)
    assert await agent.draining() == {}
    await agent.stop()


async def test_unprepare_ends_a_waiting_prepare_of_its_claim(world: World) -> None:
    agent = await Agent(world).start()
    world.inventory = Inventory("")
    ref = world.allocate("a", "gpu-0")
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(3)
    begun = now()

    assert await agent.unprepare(ref) == ""

    assert now() - begun < 0.1
    assert (await call).error == "claim a was unprepared while it was being prepared"
    await agent.stop()


@pytest.mark.parametrize("milliseconds", range(12))
async def test_unprepare_at_any_moment_of_a_prepare_leaves_nothing(world: World, milliseconds: int) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(milliseconds / 1000)
    assert await agent.unprepare(ref) == ""
    await call
    await asyncio.sleep(1)
    assert (await agent.holders(), world.files) == ({}, {})
    await agent.stop()


async def test_calls_for_one_claim_are_served_in_their_order(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    first = agent.begin(agent.unprepare(ref))
    second = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(0.1)
    assert (first.result(), second.result().error) == ("", "")
    assert world.gpu_of(ref) == {"GPU-0"}
    await agent.stop()


async def test_ten_minutes_of_a_drain_count_across_instances(world: World) -> None:
    agent = await Agent(world).start()
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.processes["pod-old"] = {101}
    await agent.unprepare(old)
    for _ in range(2):
        await asyncio.sleep(290)
        await agent.crash()
        agent = await Agent(world).start()
    assert world.notices == []
    await asyncio.sleep(30)
    assert [notice[0] for notice in world.notices] == ["drain overdue"]
    await agent.stop()
