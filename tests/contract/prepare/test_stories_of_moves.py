"""The stories of test_stories from 7 on: claims that are allocated differently while they are prepared, files of before
a reboot, and ids of before a move."""

import asyncio
from pathlib import Path

import pytest

from kubeapi import errors as api_errors
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare.model import PrepareResult
from kubeletplugin.prepare.preparer import LONGEST_SECONDS
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, now, result

pytestmark = pytest.mark.anyio

SWEEP = 31.0
"""Long enough for the next sweep to have been."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def gpus(answer: PrepareResult) -> list[str]:
    assert not answer.error
    return [device.device_name for device in answer.devices]


async def test_7_no_call_is_answered_for_an_allocation_of_before_it_came(world: World) -> None:
    agent = await Agent(world).start()
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.list_in_kubelet(old, "pod-old")
    world.deallocate(old)
    a = world.allocate("a", "gpu-0")
    first = agent.begin(agent.prepare_one(a))
    await asyncio.sleep(0.5)
    world.allocate("a", "gpu-1")

    begun = now()
    second = await agent.prepare_one(a)

    assert now() - begun < 0.1
    assert gpus(second) == ["gpu-1"]
    assert (await first) == second
    assert await agent.holders() == {"gpu-0": ["old"], "gpu-1": ["a"]}
    await agent.stop()


@pytest.mark.parametrize("milliseconds", range(12))
async def test_7_whenever_the_claim_moves_the_newest_call_gets_its_own_allocation(
    world: World, milliseconds: int
) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    first = agent.begin(agent.prepare_one(a))
    await asyncio.sleep(milliseconds / 1000)
    world.allocate("a", "gpu-1")

    assert gpus(await agent.prepare_one(a)) == ["gpu-1"]

    assert gpus(await first) in (["gpu-0"], ["gpu-1"])
    assert await agent.holders() == {"gpu-1": ["a"]}
    assert world.gpu_of(a) == {"GPU-1"}
    await agent.stop()


async def test_7_no_claim_is_refused_for_an_allocation_that_it_has_lost(world: World) -> None:
    """Its old device is rightly another's by then."""
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("b", "gpu-0"))
    a = world.allocate("a", "gpu-0")
    world.at("get b", lambda: world.allocate("a", "gpu-1"))
    assert gpus(await agent.prepare_one(a)) == ["gpu-1"]
    await agent.stop()


async def waiting_for_gpu_0(world: World) -> tuple[Agent, "asyncio.Task[PrepareResult]"]:
    """A Prepare of claim a, which waits for the pod of a claim that was let go."""
    agent = await Agent(world).start()
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.list_in_kubelet(old, "pod-old")
    world.deallocate(old)
    return agent, agent.begin(agent.prepare_one(world.allocate("a", "gpu-0")))


async def test_7_a_change_that_the_watch_shows_wakes_a_waiting_run(world: World) -> None:
    agent, call = await waiting_for_gpu_0(world)
    await asyncio.sleep(0.2)
    world.allocate("a", "gpu-1")
    agent.manager.observe_claim(world.claims["ns", "a"])
    await asyncio.sleep(0.1)
    assert gpus(call.result()) == ["gpu-1"]
    await agent.stop()


async def test_7_a_waiting_run_begins_anew_when_its_claim_moves(world: World) -> None:
    agent, call = await waiting_for_gpu_0(world)
    await asyncio.sleep(5.5)
    world.allocate("a", "gpu-1")
    await asyncio.sleep(LONGEST_SECONDS + 0.1)
    assert gpus(call.result()) == ["gpu-1"]
    await agent.stop()


async def test_8_a_file_of_before_the_reboot_is_never_handed_out(world: World) -> None:
    agent = await Agent(world).start()
    a, b = world.allocate("a", "gpu-0"), world.allocate("b", "gpu-1")
    first = await agent.prepare_one(a)
    await agent.prepare_one(b)
    await agent.crash()
    world.boot_id = "boot-2"
    whole = world.inventory
    world.inventory = Inventory("580.0", whole.devices[:1])

    following = await Agent(world).start()

    assert world.files["uid-a"].boot == "boot-2"
    assert "uid-b" not in world.files
    assert await following.prepare_one(a) == first
    world.inventory = whole
    assert gpus(await following.prepare_one(b)) == ["gpu-1"]
    assert world.files["uid-b"].boot == "boot-2"
    records = await following.ledger.claims()
    assert {record.boot_id for record in records} == {"boot-2"}
    await following.stop()


async def test_8_nor_is_one_that_could_not_be_written_anew_at_the_take_over(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    await agent.crash()
    world.boot_id = "boot-2"
    world.write_error = RecoverableError("write CDI spec: read-only file system")
    following = await Agent(world).start()
    assert world.files["uid-a"].boot == "boot-1"
    world.write_error = None

    assert gpus(await following.prepare_one(a)) == ["gpu-0"]

    assert world.files["uid-a"].boot == "boot-2"
    await following.stop()


@pytest.mark.parametrize("kubelet", ["lists the older id", "unreadable", "doesn't list it"])
async def test_11_an_older_id_that_the_kubelet_may_still_use_resolves_to_nothing(world: World, kubelet: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    if kubelet == "lists the older id":
        world.list_in_kubelet(a, "pod-a", ids=["uid-a-gpu-0"])
    elif kubelet == "unreadable":
        world.kubelet_unreadable = "permission denied"
    world.allocate("a", "gpu-1")

    assert gpus(await agent.prepare_one(a)) == ["gpu-1"]

    alias = {} if kubelet == "doesn't list it" else {"uid-a-gpu-0": ""}
    assert world.files["uid-a"].devices == {**alias, "uid-a-gpu-1": "GPU-1"}
    await agent.stop()
    world.files.clear()
    following = await Agent(world).start()
    assert world.files["uid-a"].devices == {**alias, "uid-a-gpu-1": "GPU-1"}
    await following.stop()


async def test_a_pod_that_the_kubelet_starts_with_the_claims_old_devices_is_told_of(world: World) -> None:
    """The kubelet's own fault: the GPU stays single, and a person has to delete the pod."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0"])
    await agent.prepare_one(a)
    world.allocate("a", "gpu-1", pods=["pod-2"])
    world.list_in_kubelet(a, "pod-0", "pod-2", ids=["uid-a-gpu-0"])
    b = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    agent.manager.observe_claim(world.claims["ns", "a"])
    await asyncio.sleep(2 * SWEEP)

    assert world.notices == [("claim moved", "a", "pod-2")]
    assert b.result().error.startswith("still waiting: gpu-0 is held by claim a")
    await agent.stop()


@pytest.mark.parametrize("then", ["stuck", "left alone", "prepared again", "claim gone", "only one pod"])
async def test_a_pod_that_joined_during_unprepare_is_told_of(world: World, then: str) -> None:
    """The kubelet's own fault: it forgets the claim with all its pods at the answer."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0"])
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-0", *(() if then == "only one pod" else ("pod-2",)), ids=["uid-a-gpu-0"])
    world.processes["pod-2"] = {5}
    assert await agent.unprepare(a) == ""
    del world.kubelet[a.uid]
    world.reserve(a, *(() if then == "left alone" else ("pod-2",)))
    if then == "prepared again":
        assert gpus(await agent.prepare_one(a)) == ["gpu-0"]
    elif then == "claim gone":
        world.delete(a)
    world.api_error = api_errors.ServerError(503, "ServiceUnavailable", "try again")
    await asyncio.sleep(SWEEP)
    assert world.notices == []
    world.api_error = None
    await asyncio.sleep(2 * SWEEP)
    assert world.notices == ([("claim forgotten", "a", "pod-2")] if then == "stuck" else [])
    await agent.stop()


async def test_a_claim_that_moved_to_a_device_of_the_same_name_elsewhere_is_waited_for(world: World) -> None:
    """Its pod was deleted by force, its next one is on another node, whose first GPU is a gpu-0, too."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a")
    world.allocate("a", result("gpu-0", pool="node-2"), pods=["pod-a2"])
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(2)
    assert not call.done()
    assert await agent.unprepare(a) == ""
    await asyncio.sleep(0.1)
    assert gpus(call.result()) == ["gpu-0"]
    await agent.stop()
