"""The controller on a virtual clock: when it writes, when it doesn't, and what it says."""

import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kubeapi.client import Json
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, TooManyRequests, Unreachable
from kubeletplugin.inventory.model import Attribute
from kubeletplugin.slices.controller import GUARD_SECONDS, REFUSED_SECONDS, SliceController
from kubeletplugin.slices.pace import BURST, CHANGES_REFILL_SECONDS, DELETIONS_REFILL_SECONDS
from kubeletplugin.slices.pool import PoolContent
from tests.fakes.clock import VirtualClock
from tests.unit.slices.memory import MemoryApi, Recorder
from tests.unit.slices.samples import (
    DRIVER,
    NODE,
    content_of,
    gpu_device,
    inventory_of,
    many,
    plain,
    stored,
    summary,
    taint,
)

pytestmark = pytest.mark.anyio


class HalfRandom:
    """Every draw in the middle, so that delays are known."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def randint(self, low: int, high: int) -> int:
        return (low + high) // 2


@dataclass
class World:
    clock: VirtualClock
    api: MemoryApi
    controller: SliceController
    observer: Recorder

    def want(self, *devices: Json) -> None:
        self.controller.set_pools({NODE: content_of(*devices)})

    async def pass_time(self, seconds: float = 0.0) -> None:
        await self.clock.advance(seconds)

    def accepted(self) -> bool:
        return self.controller.accepted

    @property
    def slices(self) -> list[str]:
        return summary(self.api.slices)

    def calls_since(self, count: int) -> list[str]:
        return [call.split()[0] for call in self.api.calls[count:]]


@contextlib.asynccontextmanager
async def world(*initial: Json, start: bool = True) -> AsyncIterator[World]:
    clock, api, observer = VirtualClock(), MemoryApi(), Recorder()
    api.put(*initial)
    rng: Any = HalfRandom()
    it = World(clock, api, SliceController(api, NODE, DRIVER, clock, observer, rng), observer)
    if start:
        it.controller.start()
        await it.pass_time()
    try:
        yield it
    finally:
        await it.controller.stop()


def refuse(*verbs: str, error: ApiError) -> Any:
    return lambda verb, body: error if verb in verbs else None


INVALID = Invalid(422, "Invalid", "denied by a policy")


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


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("connection refused"),
        Conflict(409, "Conflict", "changed"),
        Forbidden(403, "Forbidden", "may not create resourceslices"),
        ApiError(500, "InternalError", "etcd"),
    ],
)
async def test_errors_are_retried_with_growing_delays(error: ApiError) -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=error)
        it.want(plain("a"))
        await it.pass_time(10)
        assert not it.accepted()
        assert it.observer.retries[:4] == pytest.approx([0.15, 0.3, 0.6, 1.2])
        assert f"{NODE}: {error}" in it.observer.told
        it.api.fault = lambda verb, body: None
        await it.pass_time(30)
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=TooManyRequests(429, "TooManyRequests", "slow down", retry_after=20))
        it.want(plain("a"))
        await it.pass_time(19)
        assert len(it.api.calls) == 1
        await it.pass_time(2)
        assert len(it.api.calls) == 2


async def test_a_write_that_fails_halfway_doesnt_wake_itself_up() -> None:
    async with world(stored("00000-x", "a")) as it:
        it.api.fault = refuse("create", error=Forbidden(403, "Forbidden", "no"))
        it.want(*many(65))
        await it.pass_time(5)
        assert it.calls_since(0).count("update") == len(it.observer.retries) <= 7


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


async def test_a_refused_pool_waits_for_another_wish() -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=INVALID)
        it.want(plain("a"))
        await it.pass_time(REFUSED_SECONDS - 1)
        assert len(it.api.calls) == 1
        it.want(plain("b"))
        await it.pass_time()
        assert len(it.api.calls) == 2
        it.api.fault = lambda verb, body: None
        await it.pass_time(REFUSED_SECONDS + 1)
        assert it.slices == ["00000 g1/1 b"]
        assert it.accepted()


async def test_a_device_that_the_server_refuses_costs_only_itself() -> None:
    def picky(verb: str, body: Json) -> ApiError | None:
        for index, device in enumerate(body.get("spec", {}).get("devices", ())):
            if device["name"] == "b":
                return Invalid(422, "Invalid", f"spec.devices[{index}].attributes: not today")
        return None

    async with world() as it:
        it.api.fault = picky
        it.want(plain("a"), plain("b"), plain("c"))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a c"]
        assert it.accepted()
        assert it.observer.told == [
            f"{NODE}: leave out device b: the API server refuses it: spec.devices[1].attributes: not today"
        ]
        it.api.fault = lambda verb, body: None
        await it.pass_time(REFUSED_SECONDS + 1)
        assert it.slices == ["00000 g1/1 a b c"]


async def test_a_device_that_is_refused_again_is_told_once() -> None:
    """A refused create names the slice as it would have been called, another name each time."""
    numbers = itertools.count()

    def picky(verb: str, body: Json) -> ApiError | None:
        if body.get("spec", {}).get("devices", [{}])[0].get("name") != "a":
            return None
        name = f"00000-gpu.nvidia.com-{NODE}-{next(numbers)}"
        return Invalid(422, "Invalid", f'ResourceSlice.resource.k8s.io "{name}" is invalid: spec.devices[0]: no')

    async with world() as it:
        it.api.fault = picky
        it.want(plain("a"), plain("b"))
        await it.pass_time(3 * REFUSED_SECONDS)
        assert next(numbers) > 2
        assert it.observer.told == [f"{NODE}: leave out device a: the API server refuses it: spec.devices[0]: no"]


async def test_a_device_whose_taint_is_dropped_is_withdrawn_without_a_loop() -> None:
    def without_taints(body: Json) -> None:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)

    async with world() as it:
        it.api.mutate = without_taints
        it.want(plain("a"), plain("b", taints=[taint()]))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert it.observer.writes == ["create", "update"]
        assert any("off: DRADeviceTaints" in line for line in it.observer.told)
        assert any("leave out device b: the API server drops devices.taints" in line for line in it.observer.told)
        await it.pass_time(3600)
        assert it.observer.writes == ["create", "update"]
        it.want(plain("a", taints=[taint("48")]), plain("b"))
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 b"]
        assert it.observer.writes == ["create", "update", "update"]


async def test_a_dropped_taint_is_noticed_even_when_a_later_write_fails() -> None:
    def without_taints(body: Json) -> None:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)

    async with world() as it:
        it.api.mutate = without_taints
        it.api.fault = lambda verb, body: (
            Unreachable("down") if verb == "create" and body["metadata"]["generateName"].startswith("00001") else None
        )
        it.want(plain("b", taints=[taint()]), *many(70))
        await it.pass_time()
        it.api.fault = lambda verb, body: None
        await it.pass_time(5)
        assert "b" not in it.slices[0].split()


async def test_bad_devices_and_attributes_are_told_once() -> None:
    async with world() as it:
        bad = gpu_device(1, rawVersion=Attribute("version", "1.02.3"))
        it.controller.set_devices(inventory_of(gpu_device(0), bad))
        await it.pass_time(1)
        it.api.wipe()
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 gpu-0 gpu-1"]
        assert len(it.observer.told) == 1
        assert "leave out attributes.rawVersion of device gpu-1" in it.observer.told[0]


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


async def test_a_refused_delete_is_tried_again_and_hides_nothing() -> None:
    async with world(stored("odd", "z"), stored("00000-x", "a")) as it:
        it.api.fault = refuse("delete", error=Forbidden(403, "Forbidden", "no"))
        it.want(plain("a"))
        await it.pass_time(1)
        assert not it.accepted()
        it.api.fault = lambda verb, body: None
        await it.pass_time(5)
        assert it.slices == ["00000 g1/1 a"]


async def test_trouble_is_logged_once_with_what_to_do_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def lines(level: int) -> list[str]:
        mine = [r for r in caplog.records if r.levelno == level and "write slices" in r.getMessage()]
        return [record.getMessage() for record in mine]

    async with world() as it:
        it.api.fault = refuse("create", error=Forbidden(403, "Forbidden", "may not create"))
        it.want(plain("a"))
        await it.pass_time(120)
        assert len(it.observer.retries) > 5
        (line,) = lines(logging.WARNING)
        assert line.startswith(f"pool {NODE}: write slices: may not create (403 Forbidden); apply deploy")
        it.want(plain("a"), plain("b"))
        await it.pass_time(1)
        assert lines(logging.INFO) == []
        it.api.fault = lambda verb, body: None
        await it.pass_time(60)
        assert len(lines(logging.WARNING)) == 1
        assert lines(logging.INFO) == [f"pool {NODE}: write slices: works again"]


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


async def test_pools_fail_apart() -> None:
    async with world() as it:
        it.api.fault = lambda verb, body: (
            INVALID if verb == "create" and body["spec"]["pool"]["name"] == "bad" else None
        )
        it.controller.set_pools({"bad": content_of(plain("x")), NODE: content_of(plain("a"))})
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert not it.accepted()


async def test_counters_come_in_slices_of_their_own() -> None:
    counters = ({"name": "gpu-0-counter-set", "counters": {"memory": {"value": "80Gi"}}},)
    async with world() as it:
        it.controller.set_pools({NODE: PoolContent((plain("a"),), counters)})
        await it.pass_time()
        assert it.slices == ["00000 g1/2", "00001 g1/2 a"]
        assert it.api.slices[0]["spec"]["sharedCounters"] == list(counters)


async def test_a_dry_run_asks_about_every_slice_and_touches_nothing() -> None:
    async with world(start=False) as it:
        devices = inventory_of(*(gpu_device(index) for index in range(65)))
        assert await it.controller.dry_run(devices) == ()
        assert [call.split("-gpu")[0] for call in it.api.calls] == ["dry-run 00000", "dry-run 00001"]
        assert it.slices == []


async def test_a_dry_run_says_what_wouldnt_be_published() -> None:
    def picky(verb: str, body: Json) -> ApiError | None:
        names = [device["name"] for device in body.get("spec", {}).get("devices", ())]
        return Invalid(422, "Invalid", f"spec.devices[{names.index('gpu-1')}]: no") if "gpu-1" in names else None

    async with world(start=False) as it:
        it.api.fault = picky
        bad = gpu_device(2, rawVersion=Attribute("version", "x"))
        problems = await it.controller.dry_run(inventory_of(gpu_device(0), gpu_device(1), bad))
        assert [(problem.device, problem.key) for problem in problems] == [
            ("gpu-2", "attributes.rawVersion"),
            ("gpu-1", ""),
        ]
        assert it.observer.told == []


async def test_a_dry_run_that_is_refused_as_a_whole() -> None:
    async with world(start=False) as it:
        it.api.fault = refuse("dry-run", error=INVALID)
        with pytest.raises(Invalid, match="denied by a policy"):
            await it.controller.dry_run(inventory_of(gpu_device(0)))


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
