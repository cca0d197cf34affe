"""The reflector on a virtual clock."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from kubeapi.client import RESOURCE_SLICES, Json
from kubeapi.errors import ApiError, Forbidden, Gone, ServerError, TooManyRequests, Unreachable
from kubeapi.reflector import Change, Reflector
from tests.fakes.clock import VirtualClock
from tests.unit.kubeapi.storeapi import StoreApi

pytestmark = pytest.mark.anyio


class Rig:
    """A reflector, its server, and what a subscriber was told."""

    def __init__(
        self, *, page_size: int = 500, silence: float = 100.0, keep: Callable[[Json], Json] = lambda body: body
    ) -> None:
        self.api = StoreApi()
        self.clock = VirtualClock()
        self._make = functools.partial(
            Reflector,
            self.api,
            RESOURCE_SLICES,
            clock=self.clock,
            page_size=page_size,
            silence=silence,
            rng=random.Random(1),
            keep=keep,
        )
        self.told: list[str] = []
        self.reflector = self._make()
        self.reflector.subscribe(self._note)

    def start_from(self, state: Json) -> None:
        self.reflector = self._make(start=state)
        self.reflector.subscribe(self._note)

    def _note(self, change: Change) -> None:
        self.told.append(f"{change.type} {change.object['metadata']['name']}{change.object.get('note', '')}")

    def news(self) -> list[str]:
        told, self.told = self.told, []
        return told

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.reflector.run())
        await self.clock.settle()
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_what_is_there_and_what_changes_is_told_once() -> None:
    rig = Rig()
    rig.api.put("a")
    assert not rig.reflector.synced.is_set()
    async with rig.running():
        assert rig.reflector.synced.is_set()
        rig.api.put("b")
        rig.api.put("b", note="2")
        rig.api.remove("a")
        await rig.clock.settle()
        assert rig.news() == ["ADDED a", "ADDED b", "MODIFIED b2", "DELETED a"]
        assert [o["metadata"]["name"] for o in rig.reflector.objects()] == ["b"]
        assert rig.reflector.get("b") == rig.api.names()["b"]
        assert rig.reflector.get("a") is None
    assert rig.api.open == []
    assert rig.reflector.stats.lists == rig.reflector.stats.watches == 1


async def test_only_what_is_kept_is_held_and_told() -> None:
    rig = Rig(keep=lambda body: {"metadata": body["metadata"]})
    rig.api.put("a", note="1")
    async with rig.running():
        rig.api.put("b", note="1")
        rig.api.put("b", note="2")
        rig.api.remove("a")
        await rig.clock.settle()
        assert rig.news() == ["ADDED a", "ADDED b", "MODIFIED b", "DELETED a"]
        assert [list(body) for body in rig.reflector.objects()] == [["metadata"]]


async def test_a_late_subscriber_hears_what_is_there_and_can_leave() -> None:
    rig = Rig()
    rig.api.put("a")
    async with rig.running():
        heard: list[str] = []
        leave = rig.reflector.subscribe(lambda change: heard.append(change.type))
        rig.api.put("b")
        await rig.clock.settle()
        leave()
        rig.api.put("c")
        await rig.clock.settle()
    assert heard == ["ADDED", "ADDED"]


async def test_a_subscriber_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    def broken(change: Change) -> None:
        raise RuntimeError("mine alone")

    rig.reflector.subscribe(broken)
    rig.reflector.subscribe(rig._note)
    rig.api.put("a")
    async with rig.running():
        assert rig.news() == ["ADDED a", "ADDED a"]
    assert "mine alone" in caplog.text


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


async def test_what_changed_while_nobody_watched_is_told_from_the_list() -> None:
    rig = Rig()
    for name in ("stays", "changes", "goes", "swapped"):
        rig.api.put(name)
    async with rig.running():
        rig.news()
        rig.api.end_watches(Unreachable("gone"))
        rig.api.remove("goes")
        rig.api.put("changes", note="2")
        rig.api.remove("swapped")
        rig.api.put("swapped", uid="another", note="2")
        rig.api.put("new")
        rig.api.store.compact()
        await rig.clock.advance(5)
        assert sorted(rig.news()) == sorted(
            ["DELETED goes", "MODIFIED changes2", "ADDED new", "DELETED swapped", "ADDED swapped2"]
        )
        assert rig.reflector.stats.lists == 2


async def test_a_replacement_seen_by_the_watch_alone_is_a_delete_and_an_add() -> None:
    rig = Rig()
    rig.api.put("a")
    async with rig.running():
        rig.news()
        rig.api.put("a", uid="another")
        await rig.clock.settle()
        assert rig.news() == ["DELETED a", "ADDED a"]


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


async def test_the_first_list_is_spared_where_the_object_was_just_read() -> None:
    rig = Rig()
    rig.api.put("a", note="1")
    start = rig.api.names()["a"]
    rig.api.put("a", note="2")
    rig.start_from(start)
    assert rig.reflector.synced.is_set()
    assert rig.news() == ["ADDED a1"]
    async with rig.running():
        assert rig.api.calls == [f"watch {start['metadata']['resourceVersion']}"]
        assert rig.news() == ["MODIFIED a2"]
        rig.api.remove("a")
        await rig.clock.settle()
        assert rig.news() == ["DELETED a2"]


async def test_a_start_that_is_too_old_for_the_server_means_a_list() -> None:
    rig = Rig()
    rig.api.put("a", note="1")
    start = rig.api.names()["a"]
    rig.api.put("a", note="2")
    rig.api.store.compact()
    rig.start_from(start)
    async with rig.running():
        await rig.clock.advance(60)
        assert [call.split()[0] for call in rig.api.calls] == ["watch", "list", "watch"]
        assert rig.news() == ["ADDED a1", "MODIFIED a2"]


async def test_pages_are_put_together() -> None:
    rig = Rig(page_size=2)
    for name in "abcde":
        rig.api.put(name)
    async with rig.running():
        assert rig.news() == [f"ADDED {name}" for name in "abcde"]
        assert rig.api.calls[:3] == ["list limit=2", "list limit=2 more", "list limit=2 more"]


async def test_a_list_that_expires_between_pages_is_taken_in_one_piece() -> None:
    rig = Rig(page_size=2)
    for name in "abc":
        rig.api.put(name)
    rig.api.page_hook_errors = [Gone(410, "Expired", "too old")]
    async with rig.running():
        assert rig.news() == ["ADDED a", "ADDED b", "ADDED c"]
        assert rig.api.calls[:3] == ["list limit=2", "list limit=2 more", "list limit=0"]
        assert rig.reflector.stats.errors == 0


async def test_back_off_grows_with_jitter_and_starts_anew_after_an_event() -> None:
    rig = Rig()
    rig.api.list_errors = [Unreachable("down")] * 6
    delays: list[float] = []
    async with rig.running():
        for _ in range(6):
            due = rig.clock.next_due
            assert due is not None
            delays.append(due)
            await rig.clock.advance(due)
        assert rig.reflector.synced.is_set()
        assert rig.reflector.stats.last_error == ""
        for nominal, delay in zip((0.2, 0.4, 0.8, 1.6, 3.2, 6.4), delays, strict=True):
            assert nominal / 2 <= delay <= nominal
        rig.api.put("a")
        await rig.clock.settle()
        rig.api.end_watches(Unreachable("down"))
        await rig.clock.settle()
        assert rig.clock.next_due is not None
        assert rig.clock.next_due <= 0.2


async def test_retry_after_is_heeded() -> None:
    rig = Rig()
    rig.api.list_errors = [TooManyRequests(429, "TooManyRequests", "slow down", retry_after=17)]
    async with rig.running():
        await rig.clock.advance(16.9)
        assert not rig.reflector.synced.is_set()
        await rig.clock.advance(0.1)
        assert rig.reflector.synced.is_set()


async def test_a_server_that_ends_every_watch_at_once_is_not_called_in_a_loop() -> None:
    rig = Rig()
    async with rig.running():
        for _ in range(200):
            rig.api.end_watches()
            await rig.clock.advance(0.1)
        assert rig.reflector.stats.watches < 20
        assert "ended the watch at once" in rig.reflector.stats.last_error


def told_lines(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == level]


async def test_a_server_that_is_away_is_told_once_per_cause_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    rig.api.list_errors = [Unreachable("refused"), Unreachable("no answer")] * 5
    async with rig.running():
        await rig.clock.advance(300)
        assert rig.reflector.stats.errors == 10
        first, second = told_lines(caplog, "WARNING")
        assert first.startswith("list and watch resourceslices: refused; again in ")
        assert second.startswith("list and watch resourceslices: no answer; again in ")
        assert told_lines(caplog, "INFO").count("list and watch resourceslices: works again") == 1
        caplog.clear()
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(1)
        assert len(told_lines(caplog, "WARNING")) == 1, "a new trouble"


async def test_a_watch_that_is_forbidden_while_the_list_is_not_is_told_once_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    rig.api.watch_errors = [Forbidden(403, "Forbidden", "may not watch")] * 20
    async with rig.running():
        await rig.clock.advance(100)
        assert rig.reflector.stats.errors > 5
        (line,) = told_lines(caplog, "WARNING")
        assert "may not watch (403 Forbidden); apply deploy/manifests, and check the ClusterRole" in line
        assert told_lines(caplog, "INFO") == []
        rig.api.watch_errors = []
        await rig.clock.advance(60)
        rig.api.put("a")
        await rig.clock.settle()
        assert told_lines(caplog, "INFO") == ["list and watch resourceslices: works again"]


async def test_a_watch_that_went_on_after_a_failure_heals_without_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    async with rig.running():
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(50)
        assert "works again" not in caplog.text
        rig.api.end_watches()
        await rig.clock.settle()
        assert told_lines(caplog, "INFO") == ["list and watch resourceslices: works again"]


async def test_silence_is_no_sign_of_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig(silence=100)
    async with rig.running():
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(102)
        assert rig.reflector.stats.silent_watches == 1
        assert "works again" not in caplog.text


async def test_a_version_that_is_too_old_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    async with rig.running():
        rig.api.end_watches(Gone(410, "Expired", "too old"))
        await rig.clock.advance(1)
    assert told_lines(caplog, "WARNING") == []


async def test_it_runs_once() -> None:
    rig = Rig()
    async with rig.running():
        with pytest.raises(RuntimeError, match="runs already"):
            await rig.reflector.run()
    async with rig.running():
        assert len(rig.api.open) == 1
