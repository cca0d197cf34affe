"""What Prepare and Unprepare answer, by what they find."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kubeapi import errors as api_errors
from kubeapi.client import Json
from kubeletplugin.errors import ClaimError
from kubeletplugin.inventory.model import Inventory, WithheldGpu
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World, answered, full_gpu, now, partition, result

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_prepare_commits_the_row_then_writes_the_file_then_answers(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.steps.clear()

    answer = await agent.prepare_one(ref)

    assert answer == PrepareResult((answered("gpu-0", "uid-a"),))
    before = ["get a", "get a", "read kubelet's list", "read what others have"]
    assert world.steps == [*before, "fence", "write uid-a", "fence"]
    assert world.gpu_of(ref) == {"GPU-0"}
    assert await agent.holders() == {"gpu-0": ["a"]}
    await agent.stop()


async def test_a_repeated_prepare_answers_the_same_and_writes_nothing(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", result("gpu-1", "b"), result("gpu-0", "a"))
    first = await agent.prepare_one(ref)
    world.steps.clear()

    assert await agent.prepare_one(ref) == first
    assert [one.device_name for one in first.devices] == ["gpu-1", "gpu-0"]
    assert world.steps == ["get a", "read kubelet's list", "fence"]
    await agent.stop()
    again = await Agent(world).start()
    assert await again.prepare_one(ref) == first
    await again.stop()


@pytest.mark.parametrize(
    ("results", "expected", "held"),
    [
        pytest.param(
            [result("gpu-0", "a"), result("gpu-1", "b"), result("gpu-2", "b")],
            [("a", "gpu-0"), ("b", "gpu-1"), ("b", "gpu-2")],
            ["gpu-0", "gpu-1", "gpu-2"],
            id="several requests",
        ),
        pytest.param([result("gpu-0", "want/large")], [("want", "gpu-0")], ["gpu-0"], id="prioritized list"),
        pytest.param(
            [result("nic-0") | {"driver": "nic.example.com"}, result("gpu-0")],
            [("gpu", "gpu-0")],
            ["gpu-0"],
            id="other drivers' results",
        ),
        pytest.param([result("nic-0") | {"driver": "nic.example.com"}], [], [], id="nothing of ours"),
        pytest.param([result("gpu-0", "a", adminAccess=True)], [("a", "gpu-0")], ["gpu-0"], id="admin access"),
        pytest.param(
            [result("gpu-0", "a"), result("gpu-0", "b", adminAccess=True)],
            [("a", "gpu-0"), ("b", "gpu-0")],
            ["gpu-0"],
            id="one device by two requests",
        ),
    ],
)
async def test_what_is_answered(
    world: World, results: list[Json], expected: list[tuple[str, str]], held: list[str]
) -> None:
    world.inventory = Inventory("580.0", tuple(full_gpu(index) for index in range(3)))
    agent = await Agent(world).start()

    answer = await agent.prepare_one(world.allocate("a", *results))

    assert answer == PrepareResult(tuple(answered(name, "uid-a", request) for request, name in expected))
    assert sorted(await agent.holders()) == held
    await agent.stop()


async def test_share_ids_are_echoed_and_shares_sit_side_by_side(world: World) -> None:
    agent = await Agent(world).start()
    shares = {name: world.allocate(name, result("gpu-0", shareID=f"share-{name}")) for name in "ab"}

    answers = await agent.prepare(*shares.values())

    assert answers["uid-a"].devices == (answered("gpu-0", "uid-a", share="share-a"),)
    assert answers["uid-b"].devices == (answered("gpu-0", "uid-b", share="share-b"),)
    assert await agent.holders() == {"gpu-0": ["a", "b"]}
    await agent.stop()


async def test_admin_access_neither_holds_nor_is_held(world: World) -> None:
    agent = await Agent(world).start()
    watcher = world.allocate("watcher", result("gpu-0", adminAccess=True), result("gpu-1", adminAccess=True))
    user = world.allocate("user", "gpu-0")

    assert not (await agent.prepare_one(user)).error
    assert not (await agent.prepare_one(watcher)).error
    assert await agent.unprepare(user) == ""
    assert not (await agent.prepare_one(world.allocate("next", "gpu-0"))).error
    await agent.stop()


async def test_a_claim_shared_by_pods_is_one_hold_with_all_its_pods(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0", pods=["pod-1"])
    first = await agent.prepare_one(ref)
    world.reserve(ref, "pod-1", "pod-2")

    assert await agent.prepare_one(ref) == first
    (claim,) = await agent.ledger.claims()
    assert claim.pods == {"pod-1", "pod-2"}
    assert await agent.holders() == {"gpu-0": ["a"]}
    await agent.stop()


def _time_slicing(name: str) -> Json:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": name, "sharing": {"strategy": "TimeSlicing"}}
    opaque = {"driver": "gpu.nvidia.com", "parameters": parameters}
    return {"config": [{"source": "FromClaim", "requests": [], "opaque": opaque}]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda w: w.delete(w.ref), "claim a doesn't exist any more"),
        (lambda w: w.deallocate(w.ref), "claim a isn't allocated"),
        (lambda w: w.reserve(w.ref), "claim a isn't reserved for any pod"),
        (lambda w: w.allocate("a", "gpu-0", uid="newer"), "claim a got replaced: it is newer now, not uid-a"),
        (lambda w: w.allocate("a", "gpu-9"), "device gpu-9 doesn't exist on this node"),
        (
            lambda w: w.allocate("a", result("gpu-0") | {"pool": "elsewhere"}),
            "device gpu-0 is of pool elsewhere, this node's is node-1",
        ),
        (lambda w: w.allocate("a", "gpu-0", **_time_slicing("GpuConfg")), "did you mean 'GpuConfig'?"),
        (
            lambda w: w.allocate("a", "gpu-0", **_time_slicing("GpuConfig")),
            "device gpu-0: TimeSlicing is asked for by claim config status.allocation.devices.config[0] and isn't supp",
        ),
        (
            lambda w: setattr(w, "api_error", api_errors.Forbidden(403, "Forbidden", "may not get resourceclaims")),
            "get claim a: may not get resourceclaims (403 Forbidden)",
        ),
        (
            lambda w: setattr(w, "write_error", ClaimError("make device node /dev/nvidia0: no such device")),
            "make device node /dev/nvidia0: no such device",
        ),
    ],
)
async def test_what_cannot_clear_up_is_refused_at_once(world: World, change: Any, error: str) -> None:
    agent = await Agent(world).start()
    world.ref = world.allocate("a", "gpu-0")  # type: ignore[attr-defined]
    change(world)
    begun = now()

    answer = await agent.prepare_one(ClaimRef("uid-a", "ns", "a"))

    assert answer.devices == ()
    assert error in answer.error
    assert now() - begun < 0.1
    assert world.files == {}
    await agent.stop()


@pytest.mark.parametrize(
    ("withheld", "lost", "bound", "error"),
    [
        ([WithheldGpu(2, "GPU-2", "", "ECC row remapping failed", excluded=True)], [], "GPU-2", "is excluded on this"),
        ([], ["GPU-2"], "GPU-2", "gpu-2 (GPU-2) is lost"),
        ([], [], "", "gpu-2 doesn't exist on this node"),
    ],
)
async def test_a_device_that_will_not_come_back_is_refused(
    world: World, withheld: list[WithheldGpu], lost: list[str], bound: str, error: str
) -> None:
    agent = await Agent(world).start()
    if bound:
        await agent.ledger.set_bindings({"gpu-2": bound})
    world.inventory = dataclasses.replace(world.inventory, withheld=tuple(withheld), lost=frozenset(lost))

    assert error in (await agent.prepare_one(world.allocate("a", "gpu-2"))).error
    await agent.stop()


async def test_a_device_of_a_living_claim_is_refused_with_its_holder(world: World) -> None:
    agent = await Agent(world).start()
    world.inventory = Inventory("580.0", (full_gpu(0), partition(0, 1), partition(0, 2), full_gpu(1)))
    part = "gpu-0-mig-1g.10gb-19-1"
    await agent.prepare(world.allocate("mine", part), world.allocate("other/theirs", "gpu-1"))
    begun = now()

    own = await agent.prepare_one(world.allocate("b", "gpu-0"))
    foreign = await agent.prepare_one(world.allocate("c", "gpu-1"))
    sibling = await agent.prepare_one(world.allocate("d", "gpu-0-mig-1g.10gb-19-2"))

    assert own.error == f"{part} is held by claim mine, which is allocated the same device"
    assert foreign.error == "gpu-1 is held by claim uid-theirs of another namespace, which is allocated the same device"
    assert not sibling.error
    assert now() - begun < 0.2
    await agent.stop()


async def test_of_two_claims_with_one_device_at_the_same_time_one_gets_it(world: World) -> None:
    """Whoever allocated it twice: both look before either has committed."""
    agent = await Agent(world).start()
    a, b = world.allocate("a", "gpu-0"), world.allocate("b", "gpu-0")

    answers = await agent.prepare(a, b)

    assert answers["uid-a"].devices == (answered("gpu-0", "uid-a"),)
    assert answers["uid-b"].error == "gpu-0 is held by claim a, which is allocated the same device"
    assert await agent.holders() == {"gpu-0": ["a"]}
    await agent.stop()


async def test_claims_of_one_call_are_independent(world: World) -> None:
    agent = await Agent(world).start()
    refs = [world.allocate("a", "gpu-0"), world.allocate("b", "gpu-9"), world.allocate("c", "gpu-1")]
    answers = await agent.prepare(*refs)
    assert [bool(answers[ref.uid].error) for ref in refs] == [False, True, False]
    await agent.stop()
