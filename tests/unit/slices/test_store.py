"""The view of the server: the watch plus own writes, and which changes are news."""

import copy

import pytest

from kubeapi.client import Json
from kubeapi.reflector import Change
from kubeletplugin.slices.store import SliceStore
from tests.fakes.clock import VirtualClock
from tests.unit.slices.samples import NODE, stored, summary

pytestmark = pytest.mark.anyio


def at(version: int, name: str = "00000-x", devices: str = "a", uid: str = "") -> Json:
    body = stored(name, devices)
    body["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return body


def seen(store: SliceStore) -> list[str]:
    return summary(list(store.in_pool(NODE)))


async def test_an_own_create_is_there_before_the_watch_tells_and_its_echo_is_no_news() -> None:
    store = SliceStore(VirtualClock())
    store.wrote(at(5))
    assert seen(store) == ["00000 g1/1 a"]
    assert store.told(Change("ADDED", at(5))) is None
    assert seen(store) == ["00000 g1/1 a"]
    assert store.next_expiry() is None


async def test_an_echo_that_comes_before_the_answer() -> None:
    store = SliceStore(VirtualClock())
    store.told(Change("ADDED", at(5)))
    store.wrote(at(5))
    assert store.next_expiry() is None


async def test_an_older_event_than_the_own_update_changes_nothing() -> None:
    store = SliceStore(VirtualClock())
    store.told(Change("ADDED", at(5)))
    store.wrote(at(9, devices="a b"))
    assert store.told(Change("MODIFIED", at(7, devices="z"))) is None
    assert seen(store) == ["00000 g1/1 a b"]
    assert store.told(Change("MODIFIED", at(10, devices="z"))) == NODE
    assert seen(store) == ["00000 g1/1 z"]


async def test_a_deletion_by_others_is_news_and_an_own_one_is_not() -> None:
    store = SliceStore(VirtualClock())
    store.told(Change("ADDED", at(5)))
    assert store.told(Change("DELETED", at(6))) == NODE
    assert seen(store) == []
    body = at(7)
    store.told(Change("ADDED", body))
    store.removed(body)
    assert seen(store) == []
    assert store.told(Change("DELETED", at(8))) is None


async def test_a_delete_that_failed_leaves_the_newest_state() -> None:
    store = SliceStore(VirtualClock())
    body = at(5)
    store.told(Change("ADDED", body))
    store.removed(body)
    assert store.told(Change("MODIFIED", at(6, devices="z"))) is None
    store.not_removed(body)
    assert seen(store) == ["00000 g1/1 z"]


async def test_an_own_create_that_was_wiped_before_the_watch_showed_it() -> None:
    store = SliceStore(VirtualClock())
    store.wrote(at(5))
    assert store.told(Change("ADDED", at(5))) is None
    assert store.told(Change("DELETED", at(6))) == NODE
    assert seen(store) == []


async def test_an_own_write_that_never_shows_counts_for_a_minute() -> None:
    clock = VirtualClock()
    store = SliceStore(clock)
    store.wrote(at(5))
    await clock.advance(59)
    assert store.expire() == frozenset()
    assert seen(store) == ["00000 g1/1 a"]
    await clock.advance(1)
    assert store.expire() == {NODE}
    assert seen(store) == []


async def test_pools_and_bodies_stay_apart() -> None:
    store = SliceStore(VirtualClock())
    other = at(5, "00000-o")
    other["spec"]["pool"]["name"] = "other"
    before = copy.deepcopy(other)
    store.told(Change("ADDED", other))
    store.wrote(at(6))
    assert store.pools() == {"other", NODE}
    assert store.in_pool("other") == [before]
