"""What pods that wait cost the API server: looks cost nothing, and reads are few whatever happens."""

from collections.abc import Iterable

import pytest

from kubeletplugin.app.waking.budget import Budget
from kubeletplugin.app.waking.waker import LOOKS, READ_BURST, READ_SECONDS
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.prospects import LastCall, Prospect
from tests.fakes.clock import VirtualClock
from tests.unit.app.waking.waiting_pods import READY, Cluster

pytestmark = pytest.mark.anyio


async def test_a_device_that_becomes_free_is_asked_about_for_those_that_wait_for_it() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a", "gpu-0")
        cluster.bind("b")
        cluster.refuse("b", "gpu-1")
        await cluster.clock.advance(100)
        looks = cluster.looks
        cluster.prospects["uid-b"] = READY
        cluster.clear("a", "gpu-0")
        await cluster.clock.advance(1)
    assert [name for _, name, _ in cluster.applied] == ["a"]
    assert cluster.looks - looks == 2  # at a: before its claim was read, and after


async def test_what_becomes_free_during_a_look_is_not_missed() -> None:
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.refuse("a")
        before, seen = cluster.look, cluster.prospects["uid-a"]

        async def look(allocation: Allocation) -> Prospect:
            if cluster.prospects["uid-a"] is seen:
                cluster.clear("a")
                return seen
            return await before(allocation)

        cluster.look = look  # type: ignore[method-assign]
        await cluster.clock.advance(4.5)
    assert [name for _, name, _ in cluster.applied] == ["a"]


async def test_pods_that_have_passed_are_never_read() -> None:
    """They wait for their image, say, while claims come and go around them."""
    cluster = Cluster()
    async with cluster.running():
        for number in range(5):
            cluster.bind(f"p{number}")
            cluster.prepare(f"p{number}")
        for _ in range(240):
            cluster.ring("gpu-0", "gpu-1", "uid-other")
            await cluster.clock.advance(0.5)
    assert cluster.gets == 0 and cluster.applied == []


async def test_one_that_had_passed_and_then_fails_is_looked_at_again() -> None:
    """A kubelet that was started anew asks again."""
    cluster = Cluster()
    async with cluster.running():
        cluster.bind("a")
        cluster.prepare("a")
        await cluster.clock.advance(100)
        cluster.calls["claim-a"] = LastCall(cluster.clock.monotonic(), "the file system is full")
        cluster.ring("uid-a")
        await cluster.clock.advance(0.5)
    assert cluster.counted == ["late"]


@pytest.mark.parametrize("pods", [20, 100])
async def test_claims_that_come_and_go_make_blocked_pods_cost_no_reads(pods: int) -> None:
    cluster = Cluster()
    async with cluster.running():
        for number in range(pods):
            cluster.bind(f"p{number}")
            cluster.refuse(f"p{number}")
        await cluster.clock.advance(30)
        assert cluster.gets == pods
        looks = cluster.looks
        for _ in range(120):
            cluster.ring("gpu-0")
            await cluster.clock.advance(0.5)
    assert cluster.gets == pods
    assert cluster.looks - looks <= (120 + 1) * LOOKS


async def test_so_many_reads_a_second_and_no_more_whatever_happens() -> None:
    """Nothing that may be woken gets any better, and everything rings all the time."""
    cluster = Cluster()
    async with cluster.running():
        for number in range(300):
            cluster.bind(f"p{number}", reserved=number % 2 == 0)
            if number % 3 == 0:
                del cluster.claims[f"claim-p{number}"]
        for _ in range(120):
            cluster.ring(*(f"uid-p{number}" for number in range(300)))
            await cluster.clock.advance(0.5)
    assert most_in_a_second(cluster.get_times) <= READ_BURST + 1 / READ_SECONDS
    assert len(cluster.get_times) <= READ_BURST + 60 / READ_SECONDS
    assert len({name for _, name, _ in cluster.applied}) == 100


def most_in_a_second(times: Iterable[float]) -> int:
    times = list(times)
    return max(sum(begin <= when < begin + 1 for when in times) for begin in times)


async def test_a_budget_is_used_up_and_comes_back() -> None:
    clock = VirtualClock()
    budget = Budget(clock, 3, 2.0)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    await clock.advance(2.0)
    assert budget.has() and not budget.has(2)
    assert budget.take() and not budget.take()


async def test_more_than_a_whole_budget_is_had_by_waiting_longer_afterwards() -> None:
    clock = VirtualClock()
    budget = Budget(clock, 3, 2.0)
    assert budget.take(5) and not budget.take()
    await clock.advance(5.9)
    assert not budget.take()
    await clock.advance(0.1)
    assert budget.take()
