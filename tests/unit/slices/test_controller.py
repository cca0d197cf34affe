"""What the slice controller writes, and when it writes nothing."""

import pytest

from kubeapi.client import Json
from kubeapi.errors import Forbidden, Unreachable
from kubeletplugin.slices.pool import PoolContent
from tests.unit.slices.samples import NODE, gpu_device, inventory_of, plain, stored
from tests.unit.slices.worlds import refuse, world

pytestmark = pytest.mark.anyio


async def test_publishes_at_once_and_says_accepted_once() -> None:
    async with world() as it:
        it.want(plain("a"))
        assert not it.accepted()
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()
        assert it.observer.accepted == [True]
        assert it.observer.writes == ["create"]
        (item,) = it.api.slices
        assert item["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


async def test_a_restart_with_nothing_changed_writes_nothing() -> None:
    async with world(stored("00000-x", "a b", generation=4)) as it:
        it.want(plain("a"), plain("b"))
        await it.pass_time(3600)
        assert it.api.calls == []
        assert it.api.gets == 0
        assert it.accepted()


async def test_nothing_is_written_before_something_is_wanted() -> None:
    async with world(stored("00000-x", "a"), stored("odd", "b")) as it:
        await it.pass_time(100)
        assert it.api.calls == []
        assert not it.accepted()


async def test_nothing_is_written_before_the_first_list() -> None:
    async with world(stored("00000-x", "a"), start=False) as it:
        it.api.fault = refuse("list", error=Unreachable("down"))
        it.want(plain("a"))
        it.controller.start()
        await it.pass_time(60)
        assert it.api.calls == []
        it.api.fault = lambda verb, body: None
        await it.pass_time(60)
        assert it.api.calls == []
        assert it.accepted()


async def test_an_empty_inventory_is_an_empty_slice_and_wanting_no_pool_is_none() -> None:
    async with world(stored("00000-x", "a")) as it:
        it.controller.set_devices(inventory_of())
        await it.pass_time()
        assert it.slices == ["00000 g1/1"]
        it.controller.set_pools({})
        await it.pass_time(1)
        assert it.slices == []


async def test_pools_of_former_times_are_removed() -> None:
    async with world(stored("00000-x", "a", pool="old-name")) as it:
        it.want(plain("a"))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert sorted(it.observer.writes) == ["create", "delete"]


async def test_devices_come_in_the_inventorys_order() -> None:
    async with world() as it:
        it.controller.set_devices(inventory_of(gpu_device(7), gpu_device(2)))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 gpu-7 gpu-2"]


async def test_a_watch_that_ends_costs_no_write() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(10)
        it.api.cut_watches()
        await it.pass_time(10)
        assert it.observer.writes == ["create"]
        it.api.wipe()
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]


async def test_a_lagging_watch_doesnt_lead_to_a_second_create() -> None:
    async with world() as it:
        it.api.lag = True
        it.want(plain("a"))
        await it.pass_time()
        it.want(plain("a"), plain("b"))
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 a b"]
        assert it.observer.writes == ["create", "update"]
        it.api.release()
        await it.pass_time(120)
        assert it.observer.writes == ["create", "update"]


async def test_an_own_write_that_the_watch_never_shows_is_looked_at_again_after_a_minute() -> None:
    async with world() as it:
        it.api.lag = True
        it.want(plain("a"))
        await it.pass_time()
        it.api.wipe()
        await it.pass_time(59)
        assert it.slices == []
        await it.pass_time(2)
        assert it.slices == ["00000 g1/1 a"]


async def test_a_stop_ends_writing_and_deletes_nothing() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time()
        await it.controller.stop()
        assert it.observer.accepted == [True, False]
        it.want(plain("b"))
        await it.pass_time(100)
        assert it.slices == ["00000 g1/1 a"]
        it.controller.start()
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 b"]
        assert it.accepted()


@pytest.mark.parametrize("more", [(), (plain("b"),)], ids=["as before", "with a device more"])
async def test_what_another_instance_wrote_meanwhile_is_looked_at_before_anything_is_written(
    more: tuple[Json, ...],
) -> None:
    """It had the slices wiped by a kubelet that started, and wrote them anew: other names, the same generation."""
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        await it.controller.stop()
        it.api.wipe()
        it.api.put(stored("00000-theirs", "a"))
        before = len(it.api.calls)
        it.want(plain("a"), *more)
        it.controller.start()
        await it.pass_time(5)
        assert it.api.calls[before:] == (["update 00000-theirs"] if more else [])
        assert [item["metadata"]["name"] for item in it.api.slices] == ["00000-theirs"]
        assert it.accepted()


async def test_nothing_is_written_after_a_new_start_while_the_server_cant_be_asked() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        await it.controller.stop()
        before = len(it.api.calls)
        it.api.fault = refuse("list", error=Unreachable("down"))
        it.want(plain("b"))
        it.controller.start()
        await it.pass_time(60)
        assert it.api.calls[before:] == []
        assert not it.accepted()


async def test_starting_twice_is_a_mistake() -> None:
    async with world() as it:
        with pytest.raises(RuntimeError, match="runs already"):
            it.controller.start()


async def test_a_node_that_was_registered_anew_owns_the_new_slices() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(120)
        it.api.node_uid = "second-uid"
        it.api.wipe()
        await it.pass_time()
        assert it.api.slices[0]["metadata"]["ownerReferences"][0]["uid"] == "second-uid"


async def test_an_unreadable_node_stops_the_first_write_only() -> None:
    async with world() as it:
        it.api.fault = refuse("get", error=Forbidden(403, "Forbidden", "may not get nodes"))
        it.want(plain("a"))
        await it.pass_time(1)
        assert it.api.calls == []
        it.api.fault = lambda verb, body: None
        await it.pass_time(10)
        it.api.fault = refuse("get", error=Unreachable("down"))
        await it.pass_time(120)
        it.api.wipe()
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]


async def test_an_update_of_a_slice_that_was_just_deleted_is_planned_anew() -> None:
    async with world() as it:
        it.want(plain("a"))
        await it.pass_time(1)
        it.api.lag = True
        it.api.wipe()
        it.want(plain("b"))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 b"]
        it.api.release()
        await it.pass_time(10)
        assert it.observer.writes == ["create", "create"]


async def test_counters_come_in_slices_of_their_own() -> None:
    counters = ({"name": "gpu-0-counter-set", "counters": {"memory": {"value": "80Gi"}}},)
    async with world() as it:
        it.controller.set_pools({NODE: PoolContent((plain("a"),), counters)})
        await it.pass_time()
        assert it.slices == ["00000 g1/2", "00001 g1/2 a"]
        assert it.api.slices[0]["spec"]["sharedCounters"] == list(counters)
