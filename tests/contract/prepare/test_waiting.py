"""What a Prepare waits for, for how long, and what it says meanwhile."""

import asyncio
import dataclasses
import itertools
from pathlib import Path

import pytest

from kubeapi import errors as api_errors
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory, WithheldGpu
from kubeletplugin.prepare.model import PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, answered, full_gpu, now, result

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    "before",
    [
        Inventory(""),
        Inventory("580.0", (full_gpu(0),), (WithheldGpu(1, "GPU-1", "", "memory size can't be read"),)),
        Inventory("580.0", (full_gpu(0),), (WithheldGpu(1, "", "", "no answer"),)),
        Inventory("580.0", (full_gpu(0),)),
    ],
    ids=["driver is coming", "withheld for now", "a GPU doesn't answer", "bound, not there at the moment"],
)
async def test_a_device_that_may_come_is_waited_for(world: World, before: Inventory) -> None:
    agent = await Agent(world).start()
    await agent.ledger.set_bindings({"gpu-1": "GPU-1"})
    whole, world.inventory = world.inventory, before
    call = agent.begin(agent.prepare_one(world.allocate("a", "gpu-1")))
    await asyncio.sleep(20)
    assert not call.done()

    world.inventory = whole
    agent.manager.inventory_changed()
    await asyncio.sleep(0.1)

    assert call.result() == PrepareResult((answered("gpu-1", "uid-a"),))
    await agent.stop()


@pytest.mark.parametrize(
    "error",
    [
        api_errors.Unreachable("connection refused"),
        api_errors.ServerError(503, "ServiceUnavailable", "starting"),
        api_errors.TooManyRequests(429, "TooManyRequests", "slow down", retry_after=1),
        api_errors.Unauthorized(401, "Unauthorized", "token expired"),
        api_errors.NotFound(404, "NotFound", "the server could not find the requested resource"),
    ],
)
async def test_an_api_server_that_hiccups_is_waited_for(world: World, error: api_errors.ApiError) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.api_error = error
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(10)
    assert world.steps.count("get a") < 20
    world.api_error = None
    await asyncio.sleep(1.1)
    assert call.result() == PrepareResult((answered("gpu-0", "uid-a"),))
    await agent.stop()


async def test_a_failing_disk_is_waited_for(world: World) -> None:
    agent = await Agent(world).start()
    world.write_error = RecoverableError("write CDI spec: no space left on device")
    call = agent.begin(agent.prepare_one(world.allocate("a", "gpu-0")))
    await asyncio.sleep(5)
    world.write_error = None
    await asyncio.sleep(1.1)
    assert call.result() == PrepareResult((answered("gpu-0", "uid-a"),))
    await agent.stop()


async def test_a_call_out_of_time_says_what_it_waits_for_and_goes_on(world: World) -> None:
    agent = await Agent(world).start()
    old, new = world.allocate("old", "gpu-0"), world.allocate("new", "gpu-0")
    await agent.prepare_one(old)
    world.list_in_kubelet(old, "pod-old")
    world.deallocate(old)
    begun = now()

    answer = await agent.prepare_one(new, seconds=43)

    assert now() - begun == pytest.approx(43, abs=0.01)
    assert answer.error == (
        "still waiting: gpu-0 is held by claim old, which has let it go; waiting for its pod to end"
    )
    assert await agent.unprepare(old) == ""
    await asyncio.sleep(0.1)
    assert world.gpu_of(new) == {"GPU-0"}
    assert not (await agent.prepare_one(new, seconds=0.1)).error
    await agent.stop()


async def test_a_run_that_nobody_asks_for_any_more_ends(world: World) -> None:
    agent = await Agent(world).start()
    world.inventory = Inventory("")
    await agent.prepare_one(world.allocate("a", "gpu-0"), seconds=1)
    await asyncio.sleep(200)
    gets = world.steps.count("get a")
    await asyncio.sleep(100)
    assert world.steps.count("get a") == gets
    await agent.stop()


async def test_a_cancelled_caller_does_not_stop_the_work(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(0.001)
    call.cancel()
    await asyncio.sleep(0.1)
    assert world.gpu_of(ref) == {"GPU-0"}
    await agent.stop()


async def test_32_pods_at_once_on_8_gpus(world: World) -> None:
    """Each GPU's four claims follow each other; nobody waits for a poll, and no GPU has two at a time."""
    world.inventory = Inventory("580.0", tuple(full_gpu(index) for index in range(8)))
    agent = await Agent(world).start()
    waves = [[world.allocate(f"w{wave}g{gpu}", f"gpu-{gpu}") for gpu in range(8)] for wave in range(4)]
    calls = {ref: agent.begin(agent.prepare_one(ref)) for ref in waves[0]}
    for wave, after in itertools.pairwise(waves):
        await asyncio.sleep(0.05)
        assert [calls[ref].result().error for ref in wave] == [""] * 8
        for ref in wave:
            world.list_in_kubelet(ref, f"pod-{ref.name}")
            world.deallocate(ref)
        calls |= {ref: agent.begin(agent.prepare_one(ref)) for ref in after}
        await asyncio.sleep(0.05)
        assert not any(calls[ref].done() for ref in after)
        await asyncio.gather(*(agent.unprepare(ref) for ref in wave))
        for ref in wave:
            del world.kubelet[ref.uid]
    await asyncio.sleep(0.05)
    assert [calls[ref].result().error for ref in waves[-1]] == [""] * 8
    assert len(await agent.holders()) == 8
    await agent.stop()


async def test_a_device_that_another_plugin_gives_out_meanwhile_is_waited_for(world: World) -> None:
    """It is read right before the commit: what an earlier look said is too old."""
    agent = await Agent(world).start()
    whole = world.inventory
    taken = dataclasses.replace(whole.devices[0], problem="another device plugin gave it out")
    world.at(
        "read what others have", lambda: setattr(world, "inventory", Inventory("580.0", (taken, *whole.devices[1:])))
    )
    call = agent.begin(agent.prepare_one(world.allocate("a", "gpu-0")))
    await asyncio.sleep(5)
    ((_, reason),) = agent.manager.waiting()
    assert "another device plugin gave it out" in reason
    assert not world.files and not await agent.ledger.claims()
    world.inventory = whole
    agent.manager.inventory_changed()
    await asyncio.sleep(0.1)
    assert call.result() == PrepareResult((answered("gpu-0", "uid-a"),))
    await agent.stop()


async def test_a_device_with_a_problem_goes_to_nobody_new(world: World) -> None:
    """It is there only for who has it."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    first = await agent.prepare_one(a)
    whole = world.inventory
    lost = dataclasses.replace(whole.devices[0], problem="the GPU is lost")
    world.inventory = dataclasses.replace(whole, devices=(lost, *whole.devices[1:]))
    world.files.clear()
    assert await agent.prepare_one(a) == first
    assert await agent.unprepare(a) == ""

    answer = await agent.prepare_one(b := world.allocate("b", "gpu-0"), seconds=5)
    assert answer.error == "still waiting: device gpu-0 (GPU-0) can't be given to a new claim: the GPU is lost"

    world.inventory = whole
    agent.manager.inventory_changed()
    assert await agent.prepare_one(b) == PrepareResult((answered("gpu-0", "uid-b"),))
    await agent.stop()


async def test_administrative_access_does_not_keep_the_hold_that_a_claim_had(world: World) -> None:
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    world.allocate("a", result("gpu-0", adminAccess=True))
    assert not (await agent.prepare_one(world.allocate("b", "gpu-0"))).error
    assert await agent.holders() == {"gpu-0": ["b"]}
    await agent.stop()


async def test_a_wait_asks_the_api_server_ever_more_rarely(world: World) -> None:
    """Dozens of pods may wait for a node's GPUs, and the claim's watch rings when something changes."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a")
    world.deallocate(a)
    begun = len(world.steps)
    await agent.prepare_one(world.allocate("b", "gpu-0"), seconds=43)
    assert sum(step in ("get a", "get b") for step in world.steps[begun:]) <= 25
    await agent.stop()


async def test_a_claim_that_holds_without_a_row_is_waited_for(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    agent.ledger._connection.execute("DELETE FROM claims")
    answer = await agent.prepare_one(world.allocate("b", "gpu-0"), seconds=3)
    assert answer.error == "still waiting: gpu-0 is held by claim a, which has ended"
    await agent.stop()
