"""The agent dies between any two of its steps; the next one finds back to prepared claims that work and stale ones
that are undone."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World

pytestmark = pytest.mark.anyio

STEPS = range(8)
"""More than the longest of the four has, so the last cases die after the work was done."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def _die_during(agent: Agent, work: Awaitable[object], steps: int) -> Agent:
    agent.die_at(steps)
    agent.begin(work)
    await asyncio.sleep(1)
    await agent.crash()
    return await Agent(agent.world).start()


def _gpus(answer: PrepareResult) -> list[str]:
    assert not answer.error
    return [device.device_name for device in answer.devices]


@pytest.mark.parametrize("steps", STEPS)
async def test_prepare(world: World, steps: int) -> None:
    a = world.allocate("a", "gpu-0")
    first = await Agent(world).start()
    agent = await _die_during(first, first.prepare_one(a), steps)
    assert (world.gpu_of(a) == {"GPU-0"}) == (await agent.holders() == {"gpu-0": ["a"]})

    assert _gpus(await agent.prepare_one(a)) == ["gpu-0"]
    assert world.gpu_of(a) == {"GPU-0"}
    assert await agent.unprepare(a) == ""
    assert (await agent.holders(), world.files) == ({}, {})
    await agent.stop()


@pytest.mark.parametrize("steps", STEPS)
async def test_prepare_whose_claim_is_gone_when_the_agent_is_back(world: World, steps: int) -> None:
    a = world.allocate("a", "gpu-0")
    first = await Agent(world).start()
    agent = await _die_during(first, first.prepare_one(a), steps)

    world.deallocate(a)
    b = world.allocate("b", "gpu-0")

    assert _gpus(await agent.prepare_one(b)) == ["gpu-0"]
    assert await agent.holders() == {"gpu-0": ["b"]}
    assert list(world.files) == ["uid-b"]
    await agent.stop()


async def _running(world: World) -> tuple[Agent, ClaimRef]:
    """A claim on gpu-0 with a pod that runs, known to the kubelet."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    world.processes["pod-a"] = {1}
    return agent, a


async def _waits_for_pod_a(world: World, agent: Agent) -> "asyncio.Task[PrepareResult]":
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(3)
    assert not call.done(), "pod-a still runs on gpu-0"
    world.processes.clear()
    return call


@pytest.mark.parametrize("steps", STEPS)
async def test_unprepare(world: World, steps: int) -> None:
    first, a = await _running(world)
    world.deallocate(a)
    agent = await _die_during(first, first.unprepare(a), steps)

    call = await _waits_for_pod_a(world, agent)
    assert await agent.unprepare(a) == ""
    await asyncio.sleep(1)
    assert _gpus(call.result()) == ["gpu-0"]
    assert (await agent.holders(), list(world.files)) == ({"gpu-0": ["b"]}, ["uid-b"])
    await agent.stop()


@pytest.mark.parametrize("steps", range(14))
async def test_undo_and_prepare_anew(world: World, steps: int) -> None:
    first, a = await _running(world)
    world.allocate("a", "gpu-1", pods=["pod-2"])
    agent = await _die_during(first, first.prepare_one(a), steps)

    assert _gpus(await agent.prepare_one(a)) == ["gpu-1"]
    call = await _waits_for_pod_a(world, agent)
    await asyncio.sleep(1)
    assert _gpus(call.result()) == ["gpu-0"]
    assert await agent.holders() == {"gpu-0": ["b"], "gpu-1": ["a"]}
    assert (world.gpu_of(a), world.gpu_of(ClaimRef("uid-b", "ns", "b"))) == ({"GPU-1"}, {"GPU-0"})
    await agent.stop()


@pytest.mark.parametrize("steps", STEPS)
async def test_check(world: World, steps: int) -> None:
    first, a = await _running(world)
    world.deallocate(a)
    world.kubelet.clear()
    agent = await _die_during(first, first.manager.sweep(), steps)

    call = await _waits_for_pod_a(world, agent)
    await asyncio.sleep(1.1)
    assert _gpus(call.result()) == ["gpu-0"]
    assert (await agent.holders(), list(world.files)) == ({"gpu-0": ["b"]}, ["uid-b"])
    await agent.stop()
