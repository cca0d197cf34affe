"""The waker on a virtual clock: which pods are touched when, and how often."""

import itertools

import pytest

from kubeapi.errors import Forbidden, Unreachable
from kubeletplugin.app.waking.waker import MOST_WAKES
from tests.unit.app.waking.waiting_pods import READY, Cluster

pytestmark = pytest.mark.anyio


async def test_a_pod_that_the_kubelet_never_asked_for_is_touched_after_some_seconds() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        await cluster.clock.advance(2.9)
        assert cluster.applied == [] and cluster.gets == 0
        await cluster.clock.advance(1.0)
    ((when, name, value),) = cluster.applied
    assert (name, value) == ("a", "1") and 3.0 <= when <= 3.5
    assert cluster.counted == ["unasked"]


async def test_a_refused_pod_is_touched_as_soon_as_the_reason_is_gone() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(100)
        assert cluster.applied == []
        cluster.clear("a")
        await cluster.clock.advance(0.5)
        assert [name for _, name, _ in cluster.applied] == ["a"]
    assert cluster.counted == ["refused"]


async def test_whatever_may_have_cleared_the_way_makes_looks_frequent_again() -> None:
    """What was in the way may still be ending when its end is told."""
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(100)
        cluster.ring("gpu-0")
        await cluster.clock.advance(1)
        assert cluster.applied == []
        cluster.prospects["uid-a"] = READY
        await cluster.clock.advance(2)
        assert [name for _, name, _ in cluster.applied] == ["a"]


async def test_looks_become_rarer_while_nothing_happens() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(600)
    assert 20 <= cluster.looks <= 30
    assert cluster.gets == 1


async def test_pods_that_do_not_wait_cost_no_request_and_no_wake_up() -> None:
    cluster = Cluster()
    cluster.bind("runs", containerStatuses=[{"state": {"running": {}}}])
    cluster.bind("over", phase="Succeeded")
    cluster.bind("leaves", deleting=True)
    async with cluster.running():
        cluster.bind("a")
        await cluster.clock.advance(1)
        cluster.bind("a", conditions=[{"type": "PodReadyToStartContainers", "status": "True"}])
        await cluster.clock.advance(60)
        assert cluster.clock.sleeping == 0
    assert cluster.applied == [] and cluster.gets == 0


@pytest.mark.parametrize("missing", ["the claim", "the reservation"])
async def test_a_pod_whose_claim_is_not_its_own_is_left_alone(missing: str) -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a", reserved=missing != "the reservation")
        if missing == "the claim":
            cluster.claims.clear()
        await cluster.clock.advance(60)
    assert cluster.applied == []


async def test_a_few_times_at_most_with_growing_pauses() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        for _ in range(40):
            await cluster.clock.advance(10)
            cluster.ring("gpu-0")
    times = [when for when, _, _ in cluster.applied]
    assert [value for _, _, value in cluster.applied] == ["1", "2", "3", "4", "5"]
    gaps = [second - first for first, second in itertools.pairwise(times)]
    assert all(gap >= pause for gap, pause in zip(gaps, (5, 10, 20, 40), strict=True))


async def test_the_count_on_the_pod_holds_past_a_restart() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a", wakes=MOST_WAKES - 1)
        cluster.bind("b", wakes=MOST_WAKES)
        cluster.bind("c", wakes=800)
        await cluster.clock.advance(60)
    assert [(name, value) for _, name, value in cluster.applied] == [("a", str(MOST_WAKES))]


async def test_many_pods_are_touched_a_few_a_second() -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(50):
            cluster.bind(f"p{number:02}")
        await cluster.clock.advance(20)
    times = [when for when, _, _ in cluster.applied]
    assert len({name for _, name, _ in cluster.applied}) == 50
    assert max(sum(begin <= when < begin + 1 for when in times) for begin in times) <= 16


async def test_a_pod_that_had_to_wait_for_its_touch_is_judged_anew() -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(30):
            cluster.bind(f"p{number:02}")
        await cluster.clock.advance(3.5)
        touched = {name for _, name, _ in cluster.applied}
        assert 10 <= len(touched) < 30
        for number in range(30):
            cluster.bind(f"p{number:02}", conditions=[{"type": "PodReadyToStartContainers", "status": "True"}])
        await cluster.clock.advance(60)
    assert {name for _, name, _ in cluster.applied} == touched


@pytest.mark.parametrize("call", ["get", "apply"])
async def test_while_the_api_server_is_away_nothing_is_hammered(call: str, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    setattr(cluster, f"{call}_error", Unreachable("connection refused"))
    async with cluster.running():
        for number in range(10):
            cluster.bind(f"p{number}")
        await cluster.clock.advance(70)
        assert 5 <= cluster.gets <= 17
        assert len(caplog.messages) == 1
        setattr(cluster, f"{call}_error", None)
        await cluster.clock.advance(6)
    assert len({name for _, name, _ in cluster.applied}) == 10


async def test_missing_rights_are_told_once_and_stop_no_other_pod(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.apply_error = Forbidden(403, "Forbidden", "pods is forbidden")
    async with cluster.running():
        cluster.bind("a")
        cluster.bind("b")
        await cluster.clock.advance(4)
        assert cluster.counted == ["failed 403"] * 2
        await cluster.clock.advance(600)
    assert len(cluster.counted) == 2 * MOST_WAKES
    assert sum("pods is forbidden" in text for text in caplog.messages) == 1


async def test_a_pod_that_went_is_forgotten() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        await cluster.clock.advance(5)
        cluster.remove("a")
        await cluster.clock.advance(60)
        assert cluster.clock.sleeping == 0
    assert cluster.applied == []
