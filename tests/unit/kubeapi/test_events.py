"""The event recorder on a virtual clock."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kubeapi.client import Json, Resource
from kubeapi.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from kubeapi.events import NOTE_BYTES, EventRecorder, ObjectReference, cut
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

POD = ObjectReference("v1", "Pod", "p1", "team", "uid-1")
NODE = ObjectReference("v1", "Node", "n1", uid="uid-n")


class Writer:
    """Records what would be written; ``errors`` are raised one a call, those in ``poison`` for an Event's note."""

    def __init__(self) -> None:
        self.created: list[Json] = []
        self.patched: list[tuple[str, Json]] = []
        self.errors: list[ApiError] = []
        self.poison: dict[str, ApiError] = {}
        self.refused = 0

    async def create(self, resource: Resource, body: Json, *, namespace: str = "") -> Json:
        assert resource.api_version == "events.k8s.io/v1"
        assert namespace == body["metadata"]["namespace"]
        if body["note"] in self.poison:
            self.refused += 1
            raise self.poison[body["note"]]
        if self.errors:
            raise self.errors.pop(0)
        self.created.append(body)
        return body

    async def merge_patch(self, resource: Resource, name: str, body: Json, *, namespace: str = "") -> Json:
        if self.errors:
            raise self.errors.pop(0)
        self.patched.append((name, body))
        return body


class Rig:
    def __init__(self, queue_size: int = 256) -> None:
        self.writer = Writer()
        self.clock = VirtualClock()
        self.recorder = EventRecorder(
            self.writer,
            controller="gpu.nvidia.com",
            instance="n1",
            clock=self.clock,
            rng=random.Random(1),
            queue_size=queue_size,
        )

    def emit(
        self, about: ObjectReference = POD, *, reason: str = "GpuLost", note: str = "gone", **options: Any
    ) -> None:
        self.recorder.emit(about, reason=reason, action="Withdraw", note=note, **options)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.recorder.run())
        await self.clock.settle()
        try:
            yield
        finally:
            assert not task.done()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def test_an_event_has_all_that_the_api_asks_for() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit(warning=True, related=NODE)
        await rig.clock.settle()
    (event,) = rig.writer.created
    name = event["metadata"].pop("name")
    assert name.startswith("p1.")
    assert event == {
        "metadata": {"namespace": "team"},
        "eventTime": "2026-01-02T03:04:05.000000Z",
        "type": "Warning",
        "reason": "GpuLost",
        "action": "Withdraw",
        "note": "gone",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p1", "namespace": "team", "uid": "uid-1"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n"},
        "reportingController": "gpu.nvidia.com",
        "reportingInstance": "n1",
    }


async def test_events_of_nodes_live_in_default() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit(NODE)
        await rig.clock.settle()
    assert rig.writer.created[0]["metadata"]["namespace"] == "default"


async def test_repetitions_are_counted_and_written_once_a_minute() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit()
        await rig.clock.advance(1)
        for _ in range(50):
            rig.emit()
            await rig.clock.advance(1)
        assert rig.writer.patched == []
        await rig.clock.advance(9)
        name = rig.writer.created[0]["metadata"]["name"]
        assert rig.writer.patched == [
            (name, {"series": {"count": 51, "lastObservedTime": "2026-01-02T03:04:55.000000Z"}})
        ]
        await rig.clock.advance(3600)
        assert len(rig.writer.created) == len(rig.writer.patched) == 1


async def test_the_key_decides_what_is_the_same() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit(note="try 1", key="x")
        rig.emit(note="try 2", key="x")
        rig.emit(note="try 3")
        rig.emit(note="try 1", key="x", reason="Other")
        rig.emit(NODE, note="try 1", key="x")
        await rig.clock.settle()
        assert len(rig.writer.created) == 4
        assert rig.writer.created[0]["note"] == "try 1"
        assert rig.writer.created[0]["series"]["count"] == 2


async def test_after_a_pause_it_is_a_new_event() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit()
        await rig.clock.advance(361)
        rig.emit()
        await rig.clock.settle()
    first, second = (event["metadata"]["name"] for event in rig.writer.created)
    assert first != second


async def test_an_event_that_expired_is_made_anew_with_its_count() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit()
        await rig.clock.advance(30)
        rig.emit()
        rig.writer.errors = [NotFound(404, "NotFound", "gone")]
        await rig.clock.advance(60)
    first, second = rig.writer.created
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert second["series"]["count"] == 2


async def test_while_the_server_is_away_nothing_is_lost_and_nobody_waits() -> None:
    rig = Rig()
    rig.writer.errors = [Unreachable("down")] * 5
    async with rig.running():
        rig.emit()
        await rig.clock.advance(2)
        rig.emit()
        assert rig.writer.created == []
        await rig.clock.advance(60)
        (event,) = rig.writer.created
        assert event["eventTime"] == "2026-01-02T03:04:05.000000Z"
        assert event["series"]["count"] == 2
    assert rig.recorder.dropped == 0


async def test_an_outage_longer_than_a_series_loses_no_occurrence() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit()
        await rig.clock.advance(1)
        rig.writer.errors = [Unreachable("down")] * 1000
        rig.emit()
        await rig.clock.advance(370)
        rig.emit()
        rig.writer.errors.clear()
        await rig.clock.advance(600)
    assert len(rig.writer.created) == 1
    assert [patch["series"]["count"] for _, patch in rig.writer.patched] == [3]
    assert rig.recorder.dropped == 0


async def test_a_lost_answer_makes_no_second_event() -> None:
    rig = Rig()
    rig.writer.errors = [Unreachable("cut"), AlreadyExists(409, "AlreadyExists", "there")]
    async with rig.running():
        rig.emit()
        await rig.clock.advance(0)
        rig.emit()
        await rig.clock.advance(10)
    assert rig.writer.created == []
    assert [patch["series"]["count"] for _, patch in rig.writer.patched] == [2]


@pytest.mark.parametrize(
    "error",
    [
        ApiError(400, "BadRequest", "a webhook says no"),
        Forbidden(403, "Forbidden", "no RBAC"),
        Invalid(422, "Invalid", "bad"),
        NotFound(404, "NotFound", "no namespace"),
    ],
)
async def test_what_will_never_be_accepted_is_dropped_counted_and_said_once(
    error: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.writer.errors = [error, error]
    async with rig.running():
        rig.emit(note="a")
        rig.emit(note="b")
        rig.emit(NODE, note="c")
        await rig.clock.settle()
    assert [event["note"] for event in rig.writer.created] == ["c"]
    assert rig.recorder.dropped == 2
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1


async def test_events_that_the_server_fails_on_hold_up_no_others() -> None:
    rig = Rig()
    rig.writer.poison = {f"bad {number}": ServerError(500, "InternalError", "webhook") for number in range(5)}
    async with rig.running():
        for note in rig.writer.poison:
            rig.emit(note=note)
        rig.emit(note="good")
        await rig.clock.settle()
        assert [event["note"] for event in rig.writer.created] == ["good"]
        await rig.clock.advance(3600)
        assert rig.writer.refused < 5 * 130, "under back-off of up to a minute"
        rig.writer.poison.clear()
        await rig.clock.advance(60)
    assert len(rig.writer.created) == 6
    assert rig.recorder.dropped == 0


@pytest.mark.parametrize(
    "error",
    [
        Unauthorized(401, "Unauthorized", "expired"),
        ApiError(408, "Timeout", "slow"),
        TooManyRequests(429, "TooManyRequests", "busy", retry_after=5.0),
        ServerError(503, "ServiceUnavailable", "etcd"),
    ],
)
async def test_what_may_be_accepted_later_is_tried_again(error: ApiError) -> None:
    rig = Rig()
    rig.writer.errors = [error]
    async with rig.running():
        rig.emit()
        await rig.clock.advance(0.4)
        assert rig.writer.created == []
        await rig.clock.advance(6)
    assert len(rig.writer.created) == 1
    assert rig.recorder.dropped == 0


async def test_a_server_that_takes_nothing_is_asked_for_one_event_only() -> None:
    rig = Rig()
    rig.writer.errors = [TooManyRequests(429, "TooManyRequests", "busy", retry_after=30.0)]
    async with rig.running():
        rig.emit(note="a")
        rig.emit(note="b")
        await rig.clock.advance(29)
        assert rig.writer.created == []
        await rig.clock.advance(2)
    assert [event["note"] for event in rig.writer.created] == ["a", "b"]


async def test_a_flood_is_bounded_in_memory_and_in_rate() -> None:
    rig = Rig(queue_size=50)
    async with rig.running():
        for number in range(200):
            rig.emit(note=f"n{number}")
        assert rig.recorder.dropped == 150
        await rig.clock.advance(0)
        assert len(rig.writer.created) == 20
        await rig.clock.advance(2)
        assert len(rig.writer.created) == 21
        await rig.clock.advance(60)
        assert len(rig.writer.created) == 50
        await rig.clock.advance(400)
        rig.emit(note="room again")
        await rig.clock.settle()
        assert len(rig.writer.created) == 51


async def test_flush_tries_each_once() -> None:
    rig = Rig()
    rig.emit(note="a")
    rig.emit(note="b")
    rig.writer.errors = [Unreachable("down")]
    await rig.recorder.flush()
    assert [event["note"] for event in rig.writer.created] == ["b"]
    assert (rig.recorder.written, rig.recorder.dropped) == (1, 1)


async def test_an_event_without_a_reason_is_dropped_not_raised() -> None:
    rig = Rig()
    rig.emit(reason="")
    assert rig.recorder.dropped == 1


async def test_long_names_and_notes_fit() -> None:
    rig = Rig()
    async with rig.running():
        rig.emit(ObjectReference("v1", "Pod", "a" * 235 + "-" * 18, "team"), note="€" * 1000)
        await rig.clock.settle()
    (event,) = rig.writer.created
    assert len(event["metadata"]["name"]) <= 253
    assert "-." not in event["metadata"]["name"]
    assert len(event["note"].encode()) <= NOTE_BYTES


def test_cut_never_halves_a_character() -> None:
    assert cut("aé", 3) == "aé"
    assert cut("aéé", 4) == "a..."
    assert cut("aaaaaa", 5) == "aa..."
    assert cut("éé", 3, ellipsis="") == "é"
