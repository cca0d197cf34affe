"""The writes of one sync: tables of initial objects to expected objects and counters, and convergence from anywhere."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.client import Json
from kubeapi.errors import ApiError, Conflict, Forbidden
from kubeapi.reflector import Change
from kubeletplugin.slices.compare import DroppedField
from kubeletplugin.slices.pool import Pool, SliceContent
from kubeletplugin.slices.store import SliceStore
from kubeletplugin.slices.sync import Plan, PoolSync
from tests.fakes.clock import VirtualClock
from tests.unit.slices.memory import MemoryApi, complete_generations
from tests.unit.slices.samples import NODE, PUBLISHER, empty_pool, plain, pool_of, stored, summary, taint

pytestmark = pytest.mark.anyio


class LiveView:
    """A view without any lag."""

    def __init__(self, api: MemoryApi) -> None:
        self._api = api

    def in_pool(self, pool: str) -> Sequence[Json]:
        return [item for item in self._api.slices if item["spec"]["pool"]["name"] == pool]

    def wrote(self, stored: Json) -> None: ...

    def removed(self, existing: Json) -> None: ...

    def not_removed(self, existing: Json) -> None: ...


class Bench:
    """A server and a sync. ``readers`` is called at every write with what a reader would see then."""

    def __init__(self, *initial: Json) -> None:
        self.api = MemoryApi()
        self.api.put(*initial)
        self.writes: Counter[str] = Counter()
        self.dropped: list[DroppedField] = []
        self.readers: Callable[[list[Json]], None] = lambda slices: None
        self._sync = PoolSync(self.api, LiveView(self.api), self._count)

    def _count(self, verb: str) -> None:
        self.writes[verb] += 1
        self.readers(self.api.slices)

    async def sync(self, pool: Pool) -> Plan:
        plan = self._sync.plan(PUBLISHER, pool)
        await self._sync.write(PUBLISHER, pool, plan, self.dropped)
        return plan

    @property
    def slices(self) -> list[str]:
        return summary(self.api.slices)


@pytest.mark.parametrize(
    ("initial", "pool", "expected", "writes"),
    [
        pytest.param([], pool_of("a b"), ["00000 g1/1 a b"], {"create": 1}, id="nothing there"),
        pytest.param([], empty_pool(), ["00000 g1/1"], {"create": 1}, id="an empty pool is published"),
        pytest.param([], pool_of("a", "b"), ["00000 g1/2 a", "00001 g1/2 b"], {"create": 2}, id="two slices"),
        pytest.param([stored("00000-x", "a b")], pool_of("a b"), ["00000 g1/1 a b"], {}, id="nothing to do"),
        pytest.param(
            [stored("00000-x", "a", generation=7)], pool_of("a"), ["00000 g7/1 a"], {}, id="a high generation is fine"
        ),
        pytest.param(
            [stored("00000-x", "a")], pool_of("a b"), ["00000 g1/1 a b"], {"update": 1}, id="one change is atomic"
        ),
        pytest.param(
            [stored("00000-x", "b a")], pool_of("a b"), ["00000 g1/1 a b"], {"update": 1}, id="order is a change"
        ),
        pytest.param([stored("00000-x", "a")], empty_pool(), ["00000 g1/1"], {"update": 1}, id="the last device goes"),
        pytest.param(
            [stored("00000-x", "a", count=2), stored("00001-x", "b", count=2)],
            pool_of("a", "c"),
            ["00000 g1/2 a", "00001 g1/2 c"],
            {"update": 1},
            id="one of two changed",
        ),
        pytest.param(
            [stored("00000-x", "a", count=2), stored("00001-x", "b", count=2)],
            pool_of("c", "d"),
            ["00000 g2/2 c", "00001 g2/2 d"],
            {"update": 2},
            id="both changed",
        ),
        pytest.param(
            [stored("00000-x", "a")],
            pool_of("a", "b"),
            ["00000 g2/2 a", "00001 g2/2 b"],
            {"update": 1, "create": 1},
            id="one more slice",
        ),
        pytest.param(
            [stored("00000-x", "a", count=2), stored("00001-x", "b", count=2)],
            pool_of("a"),
            ["00000 g1/1 a"],
            {"delete": 1, "update": 1},
            id="one slice less",
        ),
        pytest.param(
            [stored("00000-x", "a", count=2), stored("00002-x", "b", count=2)],
            pool_of("a", "b"),
            ["00000 g2/2 a", "00001 g2/2 b"],
            {"delete": 1, "update": 1, "create": 1},
            id="an index out of range is obsolete",
        ),
        pytest.param(
            [stored("00000-x", "a", count=2)],
            pool_of("a", "b"),
            ["00000 g2/2 a", "00001 g2/2 b"],
            {"update": 1, "create": 1},
            id="one of two wiped",
        ),
        pytest.param(
            [stored("00000-x", "a"), stored("00000-y", "a")],
            pool_of("a"),
            ["00000 g1/1 a"],
            {"delete": 1},
            id="the second of one index is obsolete",
        ),
        pytest.param(
            [stored("peers-slice", "a b"), stored("00000-x", "a b")],
            pool_of("a b"),
            ["00000 g1/1 a b"],
            {"delete": 1},
            id="another name is obsolete",
        ),
        pytest.param(
            [stored("000000-x", "a")],
            pool_of("a"),
            ["00000 g2/1 a"],
            {"delete": 1, "create": 1},
            id="another width",
        ),
        pytest.param(
            [stored("00000-x", "a", generation=3), stored("00000-y", "b", generation=2)],
            pool_of("a"),
            ["00000 g3/1 a"],
            {"delete": 1},
            id="a lower generation is obsolete",
        ),
        pytest.param(
            [stored("00000-x", "a", generation=2, count=2), stored("00001-x", "b", generation=1, count=2)],
            pool_of("a", "b"),
            ["00000 g3/2 a", "00001 g3/2 b"],
            {"delete": 1, "update": 1, "create": 1},
            id="a raise that stopped halfway",
        ),
        pytest.param(
            [stored("00000-x", "a", pool="other-pool")],
            pool_of("a"),
            ["00000 g1/1 a", "00000 g1/1 a"],
            {"create": 1},
            id="other pools are left alone",
        ),
        pytest.param(
            [stored("00000-x", "a", perDeviceNodeSelection=True)],
            pool_of("a"),
            ["00000 g1/1 a"],
            {"update": 1},
            id="a field that somebody added goes",
        ),
    ],
)
async def test_sync(initial: list[Json], pool: Pool, expected: list[str], writes: dict[str, int]) -> None:
    bench = Bench(*initial)
    await bench.sync(pool)
    assert sorted(bench.slices) == sorted(expected)
    assert bench.writes == writes
    assert (await bench.sync(pool)).is_empty


async def test_obsolete_slices_go_first_then_updates_then_new_ones() -> None:
    bench = Bench(stored("00000-x", "a", count=2), stored("odd", "z", count=2))
    await bench.sync(pool_of("b", "c"))
    assert [call.split()[0] for call in bench.api.calls] == ["delete", "update", "create"]


async def test_a_pools_own_generation_is_a_lower_bound() -> None:
    bench = Bench(stored("00000-x", "a", generation=3))
    await bench.sync(Pool(NODE, (SliceContent((plain("a"),)),), generation=9))
    assert bench.slices == ["00000 g9/1 a"]
    await bench.sync(Pool(NODE, (SliceContent((plain("a"),)),), generation=4))
    assert bench.slices == ["00000 g9/1 a"]


async def test_metadata_of_others_survives_an_update() -> None:
    item = stored("00000-x", "a")
    item["metadata"] |= {"labels": {"team": "x"}, "generateName": "00000-", "managedFields": [{}]}
    bench = Bench(item)
    await bench.sync(pool_of("b"))
    (after,) = bench.api.slices
    assert after["metadata"]["labels"] == {"team": "x"}
    assert "managedFields" not in after["metadata"]


async def test_a_taint_keeps_its_time_through_an_update() -> None:
    time = "2026-12-01T10:00:00Z"
    item = stored("00000-x", "a b")
    item["spec"]["devices"][0]["taints"] = [taint(timeAdded=time)]
    bench = Bench(item)
    await bench.sync(Pool(NODE, (SliceContent((plain("a", taints=[taint()]), plain("c"))),)))
    (after,) = bench.api.slices
    assert after["spec"]["devices"][0]["taints"] == [taint(timeAdded=time)]
    assert bench.writes == {"update": 1}


async def test_what_the_server_made_of_a_slice_is_taken_as_done() -> None:
    bench = Bench()
    bench.api.mutate = lambda body: body["spec"]["devices"][0].update(defaultedByANewerServer=True)
    await bench.sync(pool_of("a"))
    assert (await bench.sync(pool_of("a"))).is_empty
    assert not bench.dropped
    assert not (await bench.sync(pool_of("a b"))).is_empty


async def test_dropped_fields_are_told() -> None:
    bench = Bench()
    bench.api.mutate = lambda body: body["spec"]["devices"][0].pop("taints", None)
    pool = Pool(NODE, (SliceContent((plain("a", taints=[taint()]),)),))
    await bench.sync(pool)
    assert bench.dropped == [DroppedField("devices.taints", "a")]
    assert (await bench.sync(pool)).is_empty


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no"), Conflict(409, "Conflict", "changed")])
async def test_a_slice_whose_delete_was_refused_is_still_there(error: ApiError) -> None:
    api, view = MemoryApi(), SliceStore(VirtualClock())
    api.put(stored("odd", "a"))
    view.told(Change("ADDED", api.slices[0]))
    sync = PoolSync(api, view, lambda verb: None)
    api.fault = lambda verb, body: error if verb == "delete" else None
    with pytest.raises(type(error)):
        await sync.delete(view.in_pool(NODE))
    assert summary(list(view.in_pool(NODE))) == ["odd g1/1 a"]
    api.fault = lambda verb, body: None
    await sync.delete(view.in_pool(NODE))
    assert api.slices == list(view.in_pool(NODE)) == []


NAMES = st.sampled_from(["00000-x", "00001-x", "00002-x", "00000-y", "00001-y", "000000-x", "odd", "00009-x"])
DEVICES = st.lists(st.sampled_from("abcd"), unique=True, max_size=3).map(" ".join)
INITIAL = st.dictionaries(
    NAMES, st.builds(lambda d, g, c: (d, g, c), DEVICES, st.integers(0, 4), st.integers(1, 4)), max_size=6
)
POOLS = st.lists(DEVICES, min_size=1, max_size=4).map(lambda contents: pool_of(*contents))


def contents(slices: list[Json]) -> list[str]:
    return [" ".join(device["name"] for device in item["spec"].get("devices", ())) for item in slices]


def seen_by_readers(slices: list[Json]) -> list[str] | None:
    """The scheduler's view: the highest generation, where it is complete."""
    highest = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
    current = [item for item in slices if item["spec"]["pool"]["generation"] == highest]
    return contents(current) if highest in complete_generations(slices) else None


@settings(max_examples=300)
@given(initial=INITIAL, pool=POOLS)
def test_converges_from_anywhere(initial: dict[str, tuple[str, int, int]], pool: Pool) -> None:
    """From any server state, however broken, one sync is enough, generations only rise, and no reader ever sees a
    pool that is mixed of old and new slices."""

    async def run() -> None:
        bench = Bench(*(stored(name, d, generation=g, count=c) for name, (d, g, c) in initial.items()))
        before = {item["metadata"]["uid"]: contents([item]) for item in bench.api.slices}
        highest = max((item["spec"]["pool"]["generation"] for item in bench.api.slices), default=0)
        wanted = [" ".join(device["name"] for device in it.devices) for it in pool.slices]

        def check(slices: list[Json]) -> None:
            view = seen_by_readers(slices)
            old = all(contents([item]) == before.get(item["metadata"]["uid"]) for item in slices)
            assert view is None or view == wanted or old

        bench.readers = check
        await bench.sync(pool)
        assert (await bench.sync(pool)).is_empty
        assert contents(bench.api.slices) == wanted == seen_by_readers(bench.api.slices)
        assert min(item["spec"]["pool"]["generation"] for item in bench.api.slices) >= highest

    asyncio.run(run())


@settings(max_examples=200)
@given(pools=st.lists(POOLS, min_size=2, max_size=5))
def test_never_two_complete_generations(pools: list[Pool]) -> None:
    async def run() -> None:
        bench = Bench()
        generation = 0

        def check(slices: list[Json]) -> None:
            assert len(complete_generations(slices)) <= 1

        bench.readers = check
        for pool in pools:
            await bench.sync(pool)
            (current,) = complete_generations(bench.api.slices)
            assert current >= generation
            generation = current

    asyncio.run(run())


@settings(max_examples=200)
@given(initial=INITIAL, pool=POOLS, failing=st.integers(0, 8))
def test_converges_after_a_crash_at_any_write(
    initial: dict[str, tuple[str, int, int]], pool: Pool, failing: int
) -> None:
    """A sync that stops after any write is completed by the next one, of another process that knows nothing."""

    class Crash(BaseException):
        pass

    async def run() -> None:
        api = MemoryApi()
        api.put(*(stored(name, d, generation=g, count=c) for name, (d, g, c) in initial.items()))
        left = failing

        def crash(verb: str) -> None:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1

        first = PoolSync(api, LiveView(api), crash)
        try:
            await first.write(PUBLISHER, pool, first.plan(PUBLISHER, pool), [])
        except Crash:
            pass
        second = PoolSync(api, LiveView(api), lambda verb: None)
        await second.write(PUBLISHER, pool, second.plan(PUBLISHER, pool), [])
        assert second.plan(PUBLISHER, pool).is_empty
        assert len(api.slices) == len(pool.slices)
        assert len(complete_generations(api.slices)) == 1

    asyncio.run(run())
