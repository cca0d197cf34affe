"""The reflector's copy: what it holds, and what its subscribers are told."""

import pytest

from kubeapi.errors import Gone, Unreachable
from kubeapi.reflector import Change
from tests.unit.kubeapi.reflecting import Rig

pytestmark = pytest.mark.anyio


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


async def test_it_runs_once() -> None:
    rig = Rig()
    async with rig.running():
        with pytest.raises(RuntimeError, match="runs already"):
            await rig.reflector.run()
    async with rig.running():
        assert len(rig.api.open) == 1
