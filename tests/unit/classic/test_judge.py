"""What it takes to have a GPU withheld from claims, and what to have it back."""

import asyncio
import os
from pathlib import Path

import pytest

from kubeletplugin.classic.pod_resources import PodDevices, Used
from tests.unit.classic.node import AGENT, AS_GIVEN_OUT, HELD, TRAIN, UUID, Node, record

pytestmark = pytest.mark.anyio


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# --- what takes a device ---
async def test_one_that_runs_holds_its_gpu(node: Node) -> None:
    node.run_pod()
    assert await node.looks(1) == HELD
    assert "to pod uid-train" in node.problem
    assert node.judge.changed.is_set() and node.judge.settled


@pytest.mark.parametrize("source", ["checkpoint", "pod-resources"])
async def test_either_source_is_enough(node: Node, source: str) -> None:
    node.run_pod()
    if source == "checkpoint":
        node.listed = PodDevices(frozenset({TRAIN, AGENT}))  # an init container has it
    else:
        node.allocate()
    assert await node.looks(5) == HELD


async def test_the_checkpoint_alone_takes_it_at_once(node: Node) -> None:
    """As before a claim's commit: without the kubelet's list, which may take seconds, or a look at processes."""
    node.allocate("uid-train")
    await node.judge.read()
    assert node.judge.holds == AS_GIVEN_OUT and node.problem
    assert node.lists == 0 and node.judge.changed.is_set() and node.judge.rewritten.is_set()


async def test_what_is_given_out_while_the_list_is_awaited_is_held(node: Node) -> None:
    node.allocate()
    answer, asked = asyncio.Event(), asyncio.Event()

    async def slow() -> PodDevices:
        asked.set()
        await answer.wait()
        return PodDevices(frozenset({AGENT}))

    node.list = slow  # type: ignore[method-assign]
    look = asyncio.create_task(node.judge.look())
    await asked.wait()
    node.allocate("uid-train")
    await node.judge.read()
    assert node.problem
    answer.set()
    await look
    assert node.problem and not node.judge.settled


async def test_nothing_is_free_before_the_first_reading(node: Node) -> None:
    assert "hasn't been read yet" in node.problem
    await node.judge.read()
    assert not node.problem, "no checkpoint is no device plugin"


# --- what gives it back ---
async def test_it_is_over_when_both_have_let_go(node: Node) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.allocate()
    node.judge.changed.clear()
    assert await node.looks(1) == HELD
    assert not node.judge.changed.is_set() and not node.judge.settled
    assert await node.looks(1) == {}
    assert node.judge.changed.is_set() and node.judge.settled


async def test_an_entry_of_a_pod_that_has_ended_does_not_count(node: Node) -> None:
    """The kubelet doesn't rewrite its checkpoint for that."""
    node.run_pod()
    await node.looks()
    node.end_pod()
    assert (await node.looks(1)).keys() == {UUID}
    assert await node.looks(1) == {}


async def test_nor_does_one_that_was_there_before_the_agent(node: Node) -> None:
    node.allocate("uid-train")
    node.listed = PodDevices(frozenset({AGENT}))
    assert await node.looks(1) == AS_GIVEN_OUT
    assert await node.looks(1) == {}


async def test_what_was_judged_stays_judged_until_the_checkpoint_is_written_anew(node: Node) -> None:
    node.allocate("uid-train")
    node.listed = PodDevices(frozenset({AGENT}))
    await node.looks()
    node.judge.changed.clear()
    for listed in (PodDevices(), None):  # as while the kubelet restarts
        node.listed = listed
        assert await node.looks(3) == {}
    assert not node.judge.changed.is_set()
    node.allocate("uid-train")  # a static pod keeps its UID
    node.listed, node.alive = PodDevices(frozenset({AGENT})), {"uid-train": frozenset({1})}
    await node.judge.read()
    assert node.judge.holds == AS_GIVEN_OUT
    assert await node.looks(3) == AS_GIVEN_OUT


async def test_a_pod_must_be_missed_in_two_looks_in_a_row(node: Node) -> None:
    node.allocate("uid-train")
    for pods in ({AGENT}, set[tuple[str, str]](), {AGENT}):
        node.listed = PodDevices(frozenset(pods))
        assert await node.looks(1) == AS_GIVEN_OUT
    assert await node.looks(1) == {}


@pytest.mark.parametrize(
    "sign",
    ["process", "blind", "no list", "empty list", "part of a list", "pods not known", "unknown pod", "active", "own"],
)
@pytest.mark.parametrize("known", [True, False], ids=["known before", "since before the agent"])
async def test_a_sign_of_life_keeps_it(node: Node, sign: str, known: bool) -> None:
    if known:
        node.run_pod()
        await node.looks()
        node.end_pod()
    else:
        node.allocate("uid-train")
        node.listed = PodDevices(frozenset({AGENT}))
    match sign:
        case "process":
            node.alive = {"uid-train": frozenset({1})}
        case "blind":
            node.blind = "no host PIDs"
        case "no list":
            node.listed = None
        case "empty list":
            node.listed = PodDevices()
        case "part of a list":
            node.known["uid-2"] = record("uid-2", ("team", "other"))
        case "pods not known":
            # At a take-over, or with the API server away: nobody can tell whether the list is whole.
            node.known, node.current, node.listed = {}, False, PodDevices()
        case "unknown pod":
            # The API server's word of it hasn't come yet, and its sandbox waits for a volume.
            node.listed = PodDevices(frozenset({AGENT, TRAIN}))
        case "active":
            node.known["uid-train"] = record("uid-train", TRAIN, "Pending")
            node.listed = PodDevices(frozenset({TRAIN, AGENT}))
        case "own":
            node.known["uid-agent"] = record("uid-agent", AGENT, "Pending")
            node.listed = PodDevices()
    assert (await node.looks(5)).keys() == {UUID}
    assert node.problem


@pytest.mark.parametrize(
    ("pod", "over"),
    [
        (record("uid-train", TRAIN, "Succeeded"), True),
        (record("uid-train", TRAIN, deleting=True), True),
        (record("uid-train", TRAIN), False),
    ],
    ids=["finished", "being deleted", "running, by the API server's word"],
)
async def test_a_pod_that_the_kubelet_does_not_list(node: Node, pod: object, over: bool) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.known["uid-train"] = pod  # type: ignore[assignment]
    assert (await node.looks() == {}) is over


async def test_an_agent_that_is_in_no_pod_goes_by_the_pods_that_run(node: Node) -> None:
    node.judge = type(node.judge)(node.file, node, node, node, "made-at-start")
    node.run_pod()
    await node.looks()
    node.end_pod()
    assert await node.looks() == {}


async def test_a_look_during_which_the_checkpoint_was_written_ends_nothing(node: Node) -> None:
    node.allocate("uid-train")

    async def written_meanwhile() -> PodDevices:
        node.allocate("uid-train")
        await node.judge.read()
        return PodDevices(frozenset({AGENT}))

    node.list = written_meanwhile  # type: ignore[method-assign]
    assert await node.looks(5) == AS_GIVEN_OUT


# --- what can't be told ---
@pytest.mark.parametrize("listed", [True, False], ids=["with a list", "without"])
async def test_while_the_checkpoint_cannot_be_read_nothing_is_free(node: Node, listed: bool) -> None:
    node.write("{")
    node.listed = PodDevices(frozenset({AGENT})) if listed else None
    assert await node.looks(3) == {}
    assert node.problem.startswith("what other device plugins gave out isn't known: kubelet_internal_checkpoint: ")
    node.judge.changed.clear()
    node.allocate()
    await node.looks(1)
    assert not node.problem and node.judge.changed.is_set()


async def test_nor_is_anything_over(node: Node) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.write("{")
    assert await node.looks(5) == HELD
    assert "gave it out as nvidia.com/gpu" in node.problem


async def test_a_pod_that_the_api_has_not_told_of_yet_is_known_by_its_uid(node: Node) -> None:
    node.run_pod()
    del node.known["uid-train"]
    node.alive = {}
    (hold,) = (await node.looks()).values()
    assert "uid-train" in hold.pods and "team/train" in hold.pods


@pytest.mark.parametrize(
    ("resource", "id"),
    [("volcano.sh/vgpu-number", f"{UUID}-0"), ("nvidia.com/gpu", UUID.upper()), ("example.com/gpu", UUID.lower())],
)
async def test_whose_resource_it_is_and_how_it_writes_ids_does_not_matter(node: Node, resource: str, id: str) -> None:
    node.allocate("uid-train", resource=resource, id=id)
    await node.judge.read()
    assert node.problem == f"another device plugin gave it out as {resource} (to pod uid-train)"
    node.allocate()
    node.listed = PodDevices(frozenset({AGENT}), (Used(TRAIN, resource, frozenset({UUID})),))
    assert (await node.looks(5)).keys() == {UUID}


@pytest.mark.parametrize(("resource", "count"), [("nvidia.com/gpu", 1), ("example.com/widget", 0)])
async def test_what_names_no_gpu_is_told_if_it_may_be_one(node: Node, resource: str, count: int) -> None:
    node.allocate("uid-train", resource=resource, id="0")
    await node.judge.read()
    assert not node.problem
    assert [entry.resource for entry in node.judge.nameless] == [resource] * count


async def test_an_unchanged_checkpoint_is_not_decoded_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run_pod()
    await node.judge.read()
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"read {path}"))
    os.utime(node.root)
    await node.judge.read()
    assert node.problem
