"""What is wrong with one claim, or one folder, is nobody else's trouble."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.prepare.model import ClaimRef
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World

pytestmark = pytest.mark.anyio

SWEEP = 31


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def _two(world: World) -> tuple[Agent, ClaimRef, ClaimRef]:
    agent = await Agent(world).start()
    a, b = world.allocate("a", "gpu-0"), world.allocate("b", "gpu-1")
    await agent.prepare(a, b)
    return agent, a, b


async def test_a_claim_that_nobody_foresaw_keeps_no_other_from_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    agent, a, b = await _two(world)
    world.delete(b)
    del world.claims[a.namespace, a.name]["status"]["allocation"]["devices"]["results"][0]["device"]
    await asyncio.sleep(2 * SWEEP)
    assert await agent.holders() == {"gpu-0": ["a"]}
    assert sum(message.startswith("check claim ns/a: an error") for message in caplog.messages) == 1
    await agent.stop()


async def test_a_folder_that_cannot_be_listed_keeps_no_hold(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent, a, b = await _two(world)

    def fail() -> frozenset[str]:
        raise RecoverableError("list CDI folder: permission denied")

    monkeypatch.setattr(agent.manager._node.specs, "claim_uids", fail)
    for ref in (a, b):
        world.delete(ref)
    await asyncio.sleep(2 * SWEEP)
    assert await agent.holders() == {}
    assert sum("list CDI folder" in message for message in caplog.messages) == 1
    await agent.stop()


async def test_a_part_of_the_sweep_that_fails_stops_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await Agent(world).start()

    async def fail(*_: object) -> None:
        raise KeyError("bug")

    monkeypatch.setattr(agent.manager._checks, "sweep", fail)
    ref = world.allocate("a", "gpu-0")
    world.list_in_kubelet(ref, "pod-a", ids=["uid-a-gpu-0"])
    await asyncio.sleep(SWEEP)
    assert world.gpu_of(ref) == {"GPU-0"}
    await agent.stop()


async def test_a_file_that_cannot_be_written_keeps_no_take_over(world: World, caplog: pytest.LogCaptureFixture) -> None:
    agent, _, b = await _two(world)
    await agent.crash()
    world.write_error = ValueError("nobody foresaw this")
    following = await Agent(world).start()
    assert any(message.startswith("restore the CDI file of claim ns/a") for message in caplog.messages)
    world.write_error = None
    assert await following.unprepare(b) == ""
    await following.stop()


async def test_a_claim_that_cannot_be_healed_is_tried_ever_more_rarely_and_told_of_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    ref = world.allocate("a", "gpu-9", pods=["pod-a"])
    world.list_in_kubelet(ref, "pod-a", ids=["uid-a-gpu-9", "uid-a-gpu-0"])
    agent = await Agent(world).start()
    with caplog.at_level("INFO"):
        await asyncio.sleep(3600)
    assert sum(message.startswith("refuse claim ns/a") for message in caplog.messages) < 12
    assert sum(message.startswith("prepare claim ns/a by itself") for message in caplog.messages) == 1
    assert world.counts["healed"] == 0
    world.allocate("a", "gpu-0", pods=["pod-a"])
    await asyncio.sleep(SWEEP)
    assert (world.counts["healed"], world.gpu_of(ref)) == (1, {"GPU-0"})
    await agent.stop()


async def test_a_gpu_that_is_lost_as_the_claim_is_read_again_is_not_given(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-1")

    def lose() -> None:
        world.inventory = dataclasses.replace(world.inventory, devices=world.inventory.devices[:1])

    world.at("get a", lambda: world.at("get a", lose))
    assert (await agent.prepare_one(ref)).error == "device gpu-1 doesn't exist on this node"
    assert (world.files, await agent.holders()) == ({}, {})
    await agent.stop()


async def test_a_claim_that_is_unprepared_as_it_is_looked_at_is_not_healed(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.list_in_kubelet(ref, "pod-a", ids=["uid-a-gpu-0"])
    world.at("get a", lambda: agent.begin(agent.unprepare(ref)))
    await asyncio.sleep(SWEEP)
    assert world.counts["healed"] == 0
    assert (world.files, await agent.holders()) == ({}, {})
    await agent.stop()


async def test_a_drain_that_was_ended_elsewhere_is_forgotten(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    world.processes["pod-a"] = {1}
    await agent.unprepare(ref)
    await asyncio.sleep(1)
    assert agent.manager._drains._followed
    agent.ledger._connection.execute("DELETE FROM holds")
    await asyncio.sleep(3)
    assert not agent.manager._drains._followed
    await agent.stop()
