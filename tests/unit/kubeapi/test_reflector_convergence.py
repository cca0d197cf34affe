"""Whatever happens to the server and the connection, the cache ends up equal to the server, and so does the copy of
somebody who only listened to the changes."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeapi.client import RESOURCE_SLICES, Json
from kubeapi.errors import ApiError, Gone, ServerError, Unreachable
from kubeapi.reflector import Change, Reflector
from tests.fakes.clock import VirtualClock
from tests.unit.kubeapi.storeapi import StoreApi

_NAMES = st.sampled_from("abcd")
_ERRORS: st.SearchStrategy[Callable[[], ApiError | None]] = st.sampled_from(
    [
        lambda: None,
        lambda: Unreachable("cut"),
        lambda: Gone(410, "Expired", "too old"),
        lambda: ServerError(500, "InternalError", "broken"),
    ]
)
_STEPS = st.one_of(
    st.tuples(st.just("put"), _NAMES),
    st.tuples(st.just("swap"), _NAMES),
    st.tuples(st.just("remove"), _NAMES),
    st.tuples(st.just("end"), _ERRORS),
    st.tuples(st.just("fail list"), _ERRORS),
    st.tuples(st.just("fail watch"), _ERRORS),
    st.tuples(st.sampled_from(["compact", "bookmark", "deaf", "hear"]), st.none()),
    st.tuples(st.just("wait"), st.floats(0.1, 200.0)),
)


_STEP = st.tuples(_STEPS, st.booleans())
"""What happens, and whether the reflector gets to run before the next thing does."""


class Mirror:
    """Builds its own copy from the changes, and fails on one that doesn't follow from the state before."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}

    def take(self, change: Change) -> None:
        name, uid = change.object["metadata"]["name"], change.object["metadata"]["uid"]
        known = self.objects.get(name)
        if change.type == "ADDED":
            assert known is None, f"{name} added twice"
        else:
            assert known is not None, f"{change.type} of {name}, which nobody was told of"
            assert known["metadata"]["uid"] == uid
        if change.type == "DELETED":
            del self.objects[name]
        else:
            assert known is None or int(known["metadata"]["resourceVersion"]) < int(
                change.object["metadata"]["resourceVersion"]
            ), f"{name} went back in time"
            self.objects[name] = change.object


def _act(api: StoreApi, step: str, argument: object) -> None:
    match step, argument:
        case "put", str(name):
            api.put(name, note=str(api.store.version))
        case "swap", str(name) if name in api.names():
            api.remove(name)
            api.put(name, uid=f"new-{api.store.version}")
        case "remove", str(name) if name in api.names():
            api.remove(name)
        case "end", make if callable(make):
            api.end_watches(make())
        case "fail list", make if callable(make) and (error := make()) is not None:
            api.list_errors.append(error)
        case "fail watch", make if callable(make) and (error := make()) is not None:
            api.watch_errors.append(error)
        case "compact", None:
            api.store.compact()
        case "bookmark", None:
            api.bookmark()
        case "deaf" | "hear", None:
            if step == "hear" and api.deaf:
                # What a deaf connection swallowed never comes: only ending it helps, which the silence does.
                api.end_watches(Unreachable("cut"))
            api.deaf = step == "deaf"
        case _:
            return


async def _play(steps: list[tuple[tuple[str, object], bool]], page_size: int, seed: int) -> None:
    api, clock, mirror, failures = StoreApi(), VirtualClock(), Mirror(), list[AssertionError]()
    reflector = Reflector(
        api, RESOURCE_SLICES, clock=clock, page_size=page_size, silence=100.0, rng=random.Random(seed)
    )

    def take(change: Change) -> None:
        try:
            mirror.take(change)
        except AssertionError as e:
            failures.append(e)

    reflector.subscribe(take)
    task = asyncio.create_task(reflector.run())
    try:
        for (step, argument), settled in steps:
            _act(api, step, argument)
            if isinstance(argument, float):
                await clock.advance(argument)
            elif settled:
                await clock.settle()
        api.deaf = False
        await clock.advance(1000)
        assert not failures, failures
        assert {o["metadata"]["name"]: o for o in reflector.objects()} == api.names()
        assert mirror.objects == api.names()
        assert api.most_open <= 1
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@settings(max_examples=150)
@given(
    steps=st.lists(_STEP, max_size=25),
    page_size=st.sampled_from([0, 1, 2]),
    seed=st.integers(0, 100),
)
def test_cache_and_listeners_converge(steps: list[tuple[tuple[str, object], bool]], page_size: int, seed: int) -> None:
    asyncio.run(_play(steps, page_size, seed))
