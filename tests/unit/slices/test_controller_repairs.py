"""What others delete or change in our slices is put back, and not for ever in a loop."""

from collections.abc import Callable

import pytest

from kubeapi.client import Json
from kubeapi.errors import TooManyRequests, Unreachable
from kubeletplugin.slices.pace import BURST, CHANGES_REFILL_SECONDS, DELETIONS_REFILL_SECONDS
from kubeletplugin.slices.schedule import GUARD_SECONDS
from kubeletplugin.supervision import RESTART_SECONDS
from tests.unit.slices.samples import NODE, plain
from tests.unit.slices.worlds import World, refuse, world

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("times", "apart"), [(1, 17), (20, 17), (20, GUARD_SECONDS), (200, 5)])
async def test_a_wipe_is_repaired_at_once_for_ever(times: int, apart: float) -> None:
    async with world() as it:
        it.want(plain("a"))
        for _ in range(times):
            await it.pass_time(apart)
            it.api.wipe()
            await it.pass_time()
            assert it.slices == ["00000 g1/1 a"]
            assert it.accepted()


async def test_somebody_who_deletes_in_a_loop_cant_make_it_spin() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        before = len(it.api.calls)

        def hostile(body: Json) -> None:
            it.api.wipe()

        it.api.mutate = hostile
        it.api.wipe()
        for _ in range(100):
            it.api.wipe()
            await it.pass_time(0.01)
        assert 10 <= len(it.api.calls) - before <= 60


def changed_by_a_stranger(it: World) -> None:
    item = it.api.slices[0]
    item["spec"]["devices"] = [plain("stranger")]
    it.api.put(item)


async def fight(it: World, once: Callable[[World], None], seconds: int) -> int:
    """Writes in ``seconds`` against somebody who does ``once`` whenever we have put it right."""
    before = len(it.api.calls)
    for _ in range(seconds * 20):
        if it.slices == ["00000 g1/1 a"]:
            once(it)
        await it.pass_time(0.05)
    return len(it.api.calls) - before


@pytest.mark.parametrize(
    ("once", "refill"),
    [(changed_by_a_stranger, CHANGES_REFILL_SECONDS), (lambda it: it.api.wipe(), DELETIONS_REFILL_SECONDS)],
    ids=["changes", "deletes"],
)
async def test_a_fight_ends_in_few_writes_is_told_once_and_is_over_after_quiet(
    once: Callable[[World], None], refill: float, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        assert BURST <= await fight(it, once, 60) <= BURST + 60 / refill + 1
        assert await fight(it, once, 300) <= 300 / refill + 1
        (line,) = [r.getMessage() for r in caplog.records if "somebody keeps changing" in r.getMessage()]
        assert line.startswith(f"pool {NODE}: ") and "metadata.managedFields" in line
        assert not it.accepted()
        await it.pass_time(refill)
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()
        await it.pass_time(BURST * refill)
        for _ in range(BURST):
            once(it)
            await it.pass_time(GUARD_SECONDS)
            assert it.slices == ["00000 g1/1 a"]
        assert sum("somebody keeps changing" in record.getMessage() for record in caplog.records) == 2


async def test_a_wipe_in_the_middle_of_somebodys_changes_is_repaired_at_once() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        await fight(it, changed_by_a_stranger, 60)
        for _ in range(BURST):
            it.api.wipe()
            await it.pass_time(GUARD_SECONDS)
            assert it.slices == ["00000 g1/1 a"]


async def test_a_broken_device_is_withdrawn_at_once_in_the_middle_of_a_fight() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        await fight(it, changed_by_a_stranger, 60)
        it.want(plain("b"))
        await it.pass_time(GUARD_SECONDS)
        assert it.slices == ["00000 g1/1 b"]


async def test_a_label_by_others_is_nothing_to_repair_and_uses_up_nothing() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        for number in range(3 * BURST):
            item = it.api.slices[0]
            item["metadata"]["labels"] = {"number": str(number)}
            it.api.put(item)
            await it.pass_time(0.1)
        changed_by_a_stranger(it)
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]


async def test_a_change_by_others_is_undone_at_once() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        item = it.api.slices[0]
        item["spec"]["devices"] = [plain("stranger")]
        it.api.put(item)
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]


async def test_a_wipe_during_a_back_off_is_repaired_at_once() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time()
        it.api.fault = refuse("update", error=Unreachable("down"))
        it.want(plain("b"))
        await it.pass_time(25)
        it.api.wipe()
        await it.pass_time()
        assert it.slices == ["00000 g1/1 b"]


async def test_a_change_by_others_doesnt_shorten_a_back_off() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time()
        it.api.fault = refuse("update", error=TooManyRequests(429, "TooManyRequests", "slow down", retry_after=60))
        it.want(plain("b"))
        await it.pass_time(1)
        before = len(it.api.calls)
        for _ in range(10):
            it.api.put(it.api.slices[0])
            await it.pass_time(1)
        assert len(it.api.calls) == before


async def test_a_repair_that_waits_for_the_guard_isnt_called_accepted() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time()
        it.api.wipe()
        await it.pass_time()
        it.api.wipe()
        await it.pass_time(0.001)
        assert it.slices == []
        assert not it.accepted()
        await it.pass_time(0.02)
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_watch_that_fails_in_an_unforeseen_way_is_begun_anew(verb: str) -> None:
    """Without it a wipe would go unseen, and the node without slices, for good."""

    def odd(asked: str, body: Json) -> None:
        if asked == verb:
            raise TypeError("odd answer")

    async with world(start=False) as it:
        it.want(plain("a"))
        it.api.fault = odd
        it.controller.start()
        await it.pass_time(1)
        assert not it.accepted()
        it.api.fault = lambda asked, body: None
        await it.pass_time(RESTART_SECONDS)
        assert it.slices == ["00000 g1/1 a"]
        it.api.wipe()
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()


async def test_stopping_after_an_unforeseen_failure_raises_nothing() -> None:
    def odd(asked: str, body: Json) -> None:
        raise TypeError("odd answer")

    async with world(start=False) as it:
        it.api.fault = odd
        it.controller.start()
        await it.pass_time(1)
        await it.controller.stop()
        it.api.fault = lambda asked, body: None
        it.want(plain("a"))
        it.controller.start()
        await it.pass_time(1)
        assert it.accepted()
