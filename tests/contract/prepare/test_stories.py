"""The stories by which a model checker broke earlier designs, by their numbers: how a GPU gets held twice or lost,
each told at the moment where it went wrong. (7, 8 and 11
are in test_stories_of_moves, 9 in test_stories_of_overlap, 10 in test_life, a lost ledger in test_strays.)"""

import asyncio
from pathlib import Path

import pytest

from kubeapi import errors as api_errors
from kubeletplugin.errors import RecoverableError
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World

pytestmark = pytest.mark.anyio

SWEEP = 31.0
"""Long enough for the next sweep to have been."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def gpus(answer: PrepareResult) -> list[str]:
    assert not answer.error
    return [device.device_name for device in answer.devices]


class Starter:
    """A dying pod that the runtime starts at an awkward moment: it gets what the claim's file says then."""

    def __init__(self, world: World, ref: ClaimRef, pod: str) -> None:
        self.world, self.ref, self.pod = world, ref, pod
        self.got: set[str] | None = None

    def start(self) -> None:
        self.got = self.world.gpu_of(self.ref)
        if self.got:
            self.world.processes[self.pod] = {1}


@pytest.mark.parametrize(("moment", "starts"), [("remove uid-a", True), ("look", False)])
@pytest.mark.parametrize("ended_by", ["check", "unprepare", "undo"])
async def test_1_a_pod_that_starts_while_its_hold_ends_is_seen_or_gets_nothing(
    world: World, moment: str, starts: bool, ended_by: str
) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.deallocate(a)
    b = world.allocate("b", "gpu-0")
    dying = Starter(world, a, "pod-a")
    world.at(moment, dying.start)

    if ended_by == "unprepare":
        assert await agent.unprepare(a) == ""
    elif ended_by == "undo":
        world.allocate("a", "gpu-1", pods=["pod-a2"])
        assert gpus(await agent.prepare_one(a)) == ["gpu-1"]
    call = agent.begin(agent.prepare_one(b))
    await asyncio.sleep(2)

    assert dying.got == ({"GPU-0"} if starts else set())
    assert call.done() == (not starts)
    world.processes.clear()
    await asyncio.sleep(1)
    assert gpus(call.result()) == ["gpu-0"]
    await agent.stop()


async def test_2_a_check_leaves_what_the_kubelet_still_lists(world: World) -> None:
    """It is the kubelet that may start another pod of the claim without asking us."""
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-a")
    world.deallocate(a)
    call = agent.begin(agent.prepare_one(world.allocate("b", "gpu-0")))
    await asyncio.sleep(SWEEP)
    assert not call.done()
    assert world.gpu_of(a) == {"GPU-0"}

    del world.kubelet[a.uid]
    await asyncio.sleep(1.1)

    assert gpus(call.result()) == ["gpu-0"]
    assert world.gpu_of(a) == set()
    await agent.stop()


@pytest.mark.parametrize("kubelet", ["lists it", "unreadable", "API away", "API not served", "proxy"])
async def test_2_a_sweep_ends_only_what_is_surely_over(world: World, kubelet: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    await agent.prepare_one(a)
    world.delete(a)
    if kubelet == "lists it":
        world.list_in_kubelet(a, "pod-a")
    elif kubelet == "unreadable":
        world.kubelet_unreadable = "its checksum doesn't match its data"
    elif kubelet == "API not served":
        world.api_error = api_errors.NotFound(404, "NotFound", "the server could not find the requested resource")
    elif kubelet == "proxy":
        page = 'read the answer of https://api/claims/"a": Not Found without a Status object'
        world.api_error = api_errors.NotFound(404, "Not Found", page)
    else:
        world.api_error = api_errors.Unreachable("connection refused")
    await asyncio.sleep(SWEEP)
    assert await agent.holders() == {"gpu-0": ["a"]}

    world.kubelet.clear()
    world.kubelet_unreadable, world.api_error = "", None
    await asyncio.sleep(SWEEP)
    assert (await agent.holders(), world.files) == ({}, {})
    await agent.stop()


async def test_2_a_claim_of_the_same_name_but_another_uid_is_no_sign_of_life(world: World) -> None:
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    world.allocate("a", "gpu-0", uid="newer")
    assert gpus(await agent.prepare_one(ClaimRef("newer", "ns", "a"))) == ["gpu-0"]
    assert await agent.ledger.claim("uid-a") is None
    await agent.stop()


async def test_3_undo_leaves_the_old_gpu_draining_with_the_pods_found_alive(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0", "pod-gone"])
    await agent.prepare_one(a)
    world.processes["pod-0"] = {1, 2}
    world.allocate("a", "gpu-1", pods=["pod-2"])
    world.list_in_kubelet(a, "pod-0", "pod-2")
    b = world.allocate("b", "gpu-0")

    assert gpus(await agent.prepare_one(a)) == ["gpu-1"]
    world.processes["pod-2"] = {3}
    assert await agent.draining() == {"gpu-0": ["pod-0"]}
    call = agent.begin(agent.prepare_one(b))
    await asyncio.sleep(3)
    assert not call.done()

    del world.processes["pod-0"]
    await asyncio.sleep(1)
    assert gpus(call.result()) == ["gpu-0"]
    await agent.stop()


async def test_3_two_claims_that_change_places_do_not_wait_in_a_circle(world: World) -> None:
    agent = await Agent(world).start()
    a, b = world.allocate("a", "gpu-0"), world.allocate("b", "gpu-1")
    await agent.prepare(a, b)
    for ref in (a, b):
        world.list_in_kubelet(ref, f"pod-{ref.name}")
    world.allocate("a", "gpu-1")
    world.allocate("b", "gpu-0")

    answers = await agent.prepare(a, b)

    assert (gpus(answers["uid-a"]), gpus(answers["uid-b"])) == (["gpu-1"], ["gpu-0"])
    assert (world.gpu_of(a), world.gpu_of(b)) == ({"GPU-1"}, {"GPU-0"})
    await agent.stop()


@pytest.mark.parametrize("seen_by", ["watch", "kubelet's list", "first GET", "as the hold ends"])
async def test_4_a_pod_that_came_and_went_between_two_looks_counts(world: World, seen_by: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0"])
    if seen_by == "first GET":
        world.reserve(a, "pod-0", "pod-2")
        world.at("get a", lambda: world.at("get a", lambda: world.reserve(a, "pod-0")))
    await agent.prepare_one(a)
    if seen_by == "watch":
        world.reserve(a, "pod-0", "pod-2")
        agent.manager.observe_claim(world.claims["ns", "a"])
        world.reserve(a, "pod-0")
        agent.manager.observe_claim(world.claims["ns", "a"])
    elif seen_by == "kubelet's list":
        world.list_in_kubelet(a, "pod-0", "pod-2")
        await agent.manager.observe_kubelet()
        world.list_in_kubelet(a, "pod-0")
        await agent.manager.observe_kubelet()
    elif seen_by == "as the hold ends":
        world.list_in_kubelet(a, "pod-0", "pod-2")
    await asyncio.sleep(0.1)
    world.processes["pod-2"] = {5}
    if seen_by in ("watch", "kubelet's list"):
        # It is known to the next holder of the lease, too.
        await agent.stop()
        agent = await Agent(world).start()

    assert await agent.unprepare(a) == ""

    assert await agent.draining() == {"gpu-0": ["pod-2"]}
    await agent.stop()


@pytest.mark.parametrize("noted_by", ["sweep", "sight"])
async def test_4_a_pod_whose_note_failed_is_noted_later(world: World, noted_by: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0"])
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-0")
    world.ledger_error = RecoverableError("write the ledger: no space left")
    world.reserve(a, "pod-0", "pod-2")
    agent.manager.observe_claim(world.claims["ns", "a"])
    await asyncio.sleep(0.1)
    world.ledger_error = None
    if noted_by == "sweep":
        await asyncio.sleep(31)
    else:
        agent.manager.observe_claim(world.claims["ns", "a"])
        await asyncio.sleep(0.1)
    record = await agent.ledger.claim(a.uid)
    assert record is not None
    assert record.pods == {"pod-0", "pod-2"}
    await agent.stop()


async def test_4_a_pod_that_the_kubelet_lists_only_as_the_claim_is_committed_counts(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0"])
    world.list_in_kubelet(a, "pod-0", "pod-2")
    await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-0")
    world.processes["pod-2"] = {5}
    assert await agent.unprepare(a) == ""
    assert await agent.draining() == {"gpu-0": ["pod-2"]}
    await agent.stop()


async def test_4_a_pod_seen_between_an_undo_and_the_new_commit_counts(world: World) -> None:
    agent = await Agent(world).start()
    a, old = world.allocate("a", "gpu-0", pods=["pod-0"]), world.allocate("old", "gpu-1")
    await agent.prepare(a, old)
    world.list_in_kubelet(old, "pod-old")
    world.deallocate(old)
    world.allocate("a", "gpu-1", pods=["pod-0"])
    call = agent.begin(agent.prepare_one(a))
    await asyncio.sleep(0.5)
    world.reserve(a, "pod-0", "pod-2")
    agent.manager.observe_claim(world.claims["ns", "a"])
    world.reserve(a, "pod-0")
    assert await agent.unprepare(old) == ""
    await asyncio.sleep(0.1)
    assert gpus(call.result()) == ["gpu-1"]
    record = await agent.ledger.claim(a.uid)
    assert record is not None
    assert record.pods == {"pod-0", "pod-2"}
    await agent.stop()


async def test_claims_that_are_not_prepared_after_all_are_forgotten(world: World) -> None:
    """What has been seen of them would grow for ever."""
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    assert (await agent.prepare_one(world.allocate("b", "gpu-0"))).error
    assert agent.manager._sightings.followed() == {"uid-a", "uid-b"}
    await asyncio.sleep(SWEEP)
    assert agent.manager._sightings.followed() == {"uid-a"}
    await agent.stop()


async def test_5_a_prepare_that_gives_up_has_written_no_file(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    world.at("get a", lambda: world.at("get a", lambda: world.deallocate(a)))

    assert (await agent.prepare_one(a)).error == "claim a isn't allocated"

    assert not any(step.startswith("write") for step in world.steps)
    assert (await agent.holders(), world.files) == ({}, {})
    await agent.stop()


async def test_5_a_row_without_its_file_is_written_from_the_row(world: World) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    world.at("write uid-a", lambda: setattr(agent, "dead", True))
    agent.begin(agent.prepare_one(a))
    await asyncio.sleep(0.1)
    await agent.crash()
    assert world.files == {}

    following = await Agent(world).start()
    assert world.gpu_of(a) == {"GPU-0"}

    world.files.clear()
    world.list_in_kubelet(a, "pod-a")
    await asyncio.sleep(SWEEP)
    assert world.gpu_of(a) == {"GPU-0"}
    await following.stop()


@pytest.mark.parametrize("at", ["take-over", "sweep"])
async def test_6_what_the_kubelet_believes_prepared_and_has_no_row_is_prepared_again(world: World, at: str) -> None:
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0", pods=["pod-0", "pod-2"])
    first = await agent.prepare_one(a)
    world.list_in_kubelet(a, "pod-0", "pod-2", ids=["uid-a-gpu-0"])
    assert await agent.unprepare(a) == ""
    if at == "take-over":
        await agent.crash()
        agent = await Agent(world).start()
        await asyncio.sleep(0.1)
    else:
        # At first the kubelet may only not have struck it off yet.
        await agent.manager.sweep()
        await asyncio.sleep(5)
        assert world.gpu_of(a) == set()
        await asyncio.sleep(SWEEP)

    assert world.gpu_of(a) == {"GPU-0"}
    assert await agent.holders() == {"gpu-0": ["a"]}
    assert await agent.prepare_one(a) == first
    await agent.stop()


@pytest.mark.parametrize("because", ["not reserved", "moved", "not allocated", "without our ids", "list unreadable"])
async def test_6_nothing_else_is_prepared_by_itself(world: World, because: str) -> None:
    """A device that the kubelet believes prepared is kept for that, but not prepared."""
    a = world.allocate("a", "gpu-0")
    world.list_in_kubelet(a, "pod-a", ids=[] if because == "without our ids" else ["uid-a-gpu-0"])
    if because == "not reserved":
        world.reserve(a, "pod-other")
    elif because == "moved":
        world.allocate("a", "gpu-1")
    elif because == "not allocated":
        world.deallocate(a)
    elif because == "list unreadable":
        world.kubelet_unreadable = "permission denied"
    agent = await Agent(world).start()
    await asyncio.sleep(2 * SWEEP)
    kept = {"gpu-0": ["a"]} if because in ("not reserved", "moved", "not allocated") else {}
    assert await agent.holders() == kept
    assert [record.uid for record in await agent.ledger.claims() if record.fingerprint] == []
    await agent.stop()
