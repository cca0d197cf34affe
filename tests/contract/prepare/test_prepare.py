"""What Prepare and Unprepare answer, by what they find."""

import asyncio
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from kubeapi import errors as api_errors
from kubeapi.client import Json
from kubeletplugin.errors import ClaimError, NotActiveError, RecoverableError
from kubeletplugin.inventory.model import Inventory, WithheldGpu
from kubeletplugin.prepare.model import ClaimRef, PreparedDevice, PrepareResult
from tests.contract.prepare.node import POOL, PREFIX, Agent, World, full_gpu, partition, result

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def device(name: str, uid: str, request: str = "gpu", share: str | None = None) -> PreparedDevice:
    own = f"{PREFIX}{uid}-{name}" + (f"-{share}" if share else "")
    return PreparedDevice((request,), POOL, name, (own, "k8s.gpu.nvidia.com/driver=all"), share)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_prepare_commits_the_row_then_writes_the_file_then_answers(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    world.steps.clear()

    answer = await agent.prepare_one(ref)

    assert answer == PrepareResult((device("gpu-0", "uid-a"),))
    assert world.steps == ["get a", "get a", "read kubelet's list", "fence", "write uid-a", "fence"]
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
    ("results", "answered", "held"),
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
    world: World, results: list[Json], answered: list[tuple[str, str]], held: list[str]
) -> None:
    world.inventory = Inventory("580.0", tuple(full_gpu(index) for index in range(3)))
    agent = await Agent(world).start()

    answer = await agent.prepare_one(world.allocate("a", *results))

    assert answer == PrepareResult(tuple(device(name, "uid-a", request) for request, name in answered))
    assert sorted(await agent.holders()) == held
    await agent.stop()


async def test_share_ids_are_echoed_and_shares_sit_side_by_side(world: World) -> None:
    agent = await Agent(world).start()
    shares = {name: world.allocate(name, result("gpu-0", shareID=f"share-{name}")) for name in "ab"}

    answers = await agent.prepare(*shares.values())

    assert answers["uid-a"].devices == (device("gpu-0", "uid-a", share="share-a"),)
    assert answers["uid-b"].devices == (device("gpu-0", "uid-b", share="share-b"),)
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

    assert call.result() == PrepareResult((device("gpu-1", "uid-a"),))
    await agent.stop()


@pytest.mark.parametrize(
    "error",
    [
        api_errors.Unreachable("connection refused"),
        api_errors.ServerError(503, "ServiceUnavailable", "starting"),
        api_errors.TooManyRequests(429, "TooManyRequests", "slow down", retry_after=1),
        api_errors.Unauthorized(401, "Unauthorized", "token expired"),
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
    assert call.result() == PrepareResult((device("gpu-0", "uid-a"),))
    await agent.stop()


async def test_a_failing_disk_is_waited_for(world: World) -> None:
    agent = await Agent(world).start()
    world.write_error = RecoverableError("write CDI spec: no space left on device")
    call = agent.begin(agent.prepare_one(world.allocate("a", "gpu-0")))
    await asyncio.sleep(5)
    world.write_error = None
    await asyncio.sleep(1.1)
    assert call.result() == PrepareResult((device("gpu-0", "uid-a"),))
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


async def test_claims_of_one_call_are_independent(world: World) -> None:
    agent = await Agent(world).start()
    refs = [world.allocate("a", "gpu-0"), world.allocate("b", "gpu-9"), world.allocate("c", "gpu-1")]
    answers = await agent.prepare(*refs)
    assert [bool(answers[ref.uid].error) for ref in refs] == [False, True, False]
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


# --- Unprepare ---
async def test_unprepare_removes_the_file_then_looks_then_commits(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    world.steps.clear()

    assert await agent.unprepare(ref) == ""

    assert world.steps == ["remove uid-a", "read kubelet's list", "look", "fence", "fence"]
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

    assert call.result() == PrepareResult((device("gpu-0", "uid-new"),))
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

    assert await agent.draining() == {"gpu-0": ["pod-unknown"]}
    world.on_device["GPU-0"] = {"pod-watcher": frozenset({7})}
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


# --- yielding ---
async def test_yielding_stops_waits_at_once_and_passes_the_calls_on(world: World) -> None:
    """Story 10: a yield doesn't wait for a Prepare that waits for what the next holder is going to be told."""
    agent = await Agent(world).start()
    held, waiting = world.allocate("held", "gpu-0"), world.allocate("waiting", "gpu-0")
    await agent.prepare_one(held)
    world.list_in_kubelet(held, "pod-held", ids=[f"{PREFIX}uid-held-gpu-0"])
    world.deallocate(held)
    call = agent.begin(agent.prepare_one(waiting))
    await asyncio.sleep(1)
    begun = now()

    await agent.stop()

    assert now() - begun < 0.1
    with pytest.raises(NotActiveError):
        await call
    with pytest.raises(NotActiveError):
        await agent.prepare_one(waiting)
    with pytest.raises(NotActiveError):
        await agent.unprepare(held)
    following = await Agent(world).start()
    again = following.begin(following.prepare_one(waiting))
    assert await following.unprepare(held) == ""
    assert not (await again).error
    await following.stop()


@pytest.mark.parametrize("milliseconds", range(12))
async def test_yielding_outwaits_what_changes_something(world: World, milliseconds: int) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    call = agent.begin(agent.prepare_one(ref))
    await asyncio.sleep(milliseconds / 1000)
    await agent.stop()
    steps = len(world.steps)
    outcome = (await asyncio.gather(call, return_exceptions=True))[0]
    await asyncio.sleep(5)
    assert len(world.steps) <= steps + 1  # the fence of the answer itself
    following = await Agent(world).start()
    assert (world.gpu_of(ref) == {"GPU-0"}) == (await following.holders() == {"gpu-0": ["a"]})
    if isinstance(outcome, PrepareResult):
        assert world.gpu_of(ref) == {"GPU-0"}
    else:
        assert isinstance(outcome, NotActiveError)
    await following.stop()


async def test_status_tells_devices_holders_and_what_is_waited_for(world: World) -> None:
    agent = await Agent(world).start()
    await agent.prepare_one(world.allocate("a", "gpu-0"))
    world.inventory = dataclasses.replace(world.inventory, withheld=(WithheldGpu(9, "GPU-9", "", "excluded", True),))
    agent.begin(agent.prepare_one(world.allocate("b", "gpu-9")))
    await asyncio.sleep(0.5)

    status = await agent.manager.status()

    assert status["devices"] == [
        {
            "name": "gpu-0",
            "uuid": "GPU-0",
            "state": "held",
            "holders": [
                {
                    "route": "claim",
                    "uid": "uid-a",
                    "namespace": "ns",
                    "name": "a",
                    "state": "held",
                    "since": "2026-01-02T03:04:05+00:00",
                    "reason": "",
                    "admin": False,
                    "shareId": "",
                    "pods": ["pod-a"],
                }
            ],
        },
        {"name": "gpu-1", "uuid": "GPU-1", "state": "free", "holders": []},
    ]
    assert status["withheld"][0]["reason"] == "excluded"
    assert status["waiting"] == [
        {
            "claim": {"uid": "uid-b", "namespace": "ns", "name": "b"},
            "for": "device gpu-9 isn't there: GPU 9 is withheld: excluded",
        }
    ]
    await agent.stop()
