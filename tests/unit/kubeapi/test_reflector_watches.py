"""The reflector's watches: when one is resumed, when given up, and when a new list is taken."""

import pytest

from kubeapi.errors import ApiError, Forbidden, Gone, ServerError, TooManyRequests, Unreachable
from tests.unit.kubeapi.reflecting import Rig

pytestmark = pytest.mark.anyio


async def test_an_orderly_end_is_resumed_at_once_without_a_list() -> None:
    rig = Rig()
    async with rig.running():
        await rig.clock.advance(50)
        rig.api.put("a")
        await rig.clock.settle()
        rig.api.end_watches()
        rig.api.put("b")
        await rig.clock.settle()
        assert rig.news() == ["ADDED a", "ADDED b"]
        assert rig.api.calls == ["list limit=500", "watch 1000", "watch 1001"]
        assert rig.reflector.stats.errors == 0


@pytest.mark.parametrize(
    ("error", "lists_again"),
    [
        (Unreachable("connection reset"), False),
        (TooManyRequests(429, "TooManyRequests", "slow down"), False),
        (Gone(410, "Expired", "too old"), True),
        (ServerError(500, "InternalError", "broken"), True),
        (Forbidden(403, "Forbidden", "no"), True),
    ],
)
async def test_only_an_error_that_the_server_sent_means_a_new_list(error: ApiError, lists_again: bool) -> None:
    rig = Rig()
    async with rig.running():
        rig.api.end_watches(error)
        await rig.clock.settle()
        assert rig.reflector.stats.last_error == str(error)
        await rig.clock.advance(1)
        assert rig.reflector.stats.errors == 1
        assert rig.reflector.stats.lists == (2 if lists_again else 1)
        assert len(rig.api.open) == rig.api.most_open == 1


async def test_a_silent_watch_is_given_up_and_resumed() -> None:
    rig = Rig(silence=100)
    async with rig.running():
        await rig.clock.advance(60)
        rig.api.bookmark()
        await rig.clock.settle()
        await rig.clock.advance(99)
        assert rig.reflector.stats.silent_watches == 0
        await rig.clock.advance(1)
        assert rig.reflector.stats.silent_watches == 1
        assert rig.reflector.stats.errors == 0
        assert len(rig.api.open) == rig.api.most_open == 1
        assert rig.reflector.stats.lists == 1


async def test_a_deaf_watch_costs_at_most_the_silence() -> None:
    rig = Rig(silence=100)
    async with rig.running():
        rig.api.deaf = True
        rig.api.put("a")
        await rig.clock.settle()
        assert rig.news() == []
        rig.api.deaf = False
        await rig.clock.advance(100)
        assert rig.news() == ["ADDED a"]


async def test_a_server_restored_from_a_backup_is_noticed() -> None:
    rig = Rig(silence=100)
    rig.api.put("kept")
    rig.api.put("made later")
    async with rig.running():
        rig.news()
        rig.api.remove("made later")
        await rig.clock.settle()
        assert rig.news() == ["DELETED made later"]
        rig.api.end_watches(Unreachable("down"))
        await rig.clock.settle()
        rig.api.collection.history.clear()
        rig.api.store.version -= 10
        rig.api.put("restored")
        await rig.clock.advance(199)
        assert rig.news() == []
        await rig.clock.advance(2)
        assert rig.news() == ["ADDED restored"]
        assert rig.reflector.stats.lists == 2
        await rig.clock.advance(60)
        rig.api.put("new")
        await rig.clock.settle()
        assert rig.news() == ["ADDED new"]


async def test_a_bookmark_is_a_version_and_nothing_else() -> None:
    rig = Rig()
    async with rig.running():
        rig.api.store.version += 70
        rig.api.bookmark()
        await rig.clock.advance(5)
        assert rig.reflector.objects() == ()
        assert rig.news() == []
        rig.api.end_watches()
        await rig.clock.settle()
        assert rig.api.calls[-1] == "watch 1070"


async def test_one_mute_watch_now_and_then_means_nothing() -> None:
    rig = Rig(silence=100)
    async with rig.running():
        for _ in range(4):
            await rig.clock.advance(100)
            rig.api.bookmark()
            await rig.clock.advance(5)
            rig.api.end_watches()
            await rig.clock.settle()
        assert rig.reflector.stats.silent_watches == 4
        assert rig.reflector.stats.lists == 1


async def test_watches_that_hear_bookmarks_never_list_again() -> None:
    rig = Rig(silence=100)
    async with rig.running():
        for _ in range(30):
            await rig.clock.advance(60)
            rig.api.bookmark()
            await rig.clock.advance(30)
            rig.api.end_watches()
        assert rig.reflector.stats.lists == 1


async def test_an_idle_watch_costs_a_few_requests_an_hour_and_agents_dont_come_together() -> None:
    rig = Rig()
    async with rig.running():
        for _ in range(50):
            rig.api.bookmark()
            await rig.clock.settle()
            rig.api.end_watches()
            await rig.clock.advance(1)
    assert len(set(rig.api.seconds)) > 40
    assert all(3600 / seconds <= 3 for seconds in rig.api.seconds)
