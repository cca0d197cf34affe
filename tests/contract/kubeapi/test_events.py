"""The event recorder against the API's own rules for Events."""

import asyncio
from contextlib import suppress

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import EVENTS
from kubeapi.events import EventRecorder, ObjectReference
from kubeapi.rest import RestKubeApi
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

POD = ObjectReference("v1", "Pod", "p1", "team", "uid-1")
NODE = ObjectReference("v1", "Node", "n1")


async def test_series_are_accepted_and_counted(server: FakeApiServer, api: RestKubeApi) -> None:
    clock = VirtualClock()
    recorder = EventRecorder(api, controller="gpu.nvidia.com", instance="n1", clock=clock)
    for about in (POD, NODE):
        recorder.emit(about, reason="GpuLost", action="Withdraw", note="€" * 600, warning=True)
    await recorder.flush()
    recorder.emit(POD, reason="GpuLost", action="Withdraw", note="€" * 600, warning=True)
    await recorder.flush()
    stored = {e["metadata"]["namespace"]: e for e in server.objects(EVENTS)}
    assert stored.keys() == {"team", "default"}
    assert stored["team"]["series"]["count"] == 2
    assert "series" not in stored["default"]
    assert recorder.dropped == 0
    assert server.requests["create", "events"] == 2
    assert server.requests["patch", "events"] == 1


async def test_an_answer_lost_on_the_way_leaves_one_event(server: FakeApiServer, api: RestKubeApi) -> None:
    clock = VirtualClock()
    recorder = EventRecorder(api, controller="gpu.nvidia.com", instance="n1", clock=clock)
    server.faults.drop(verb="create", done=True)
    recorder.emit(POD, reason="GpuLost", action="Withdraw", note="gone")
    task = asyncio.create_task(recorder.run())
    await server.until(lambda: server.requests["create", "events"] == 1)
    await clock.until_asleep()
    recorder.emit(POD, reason="GpuLost", action="Withdraw", note="gone")
    await clock.advance(1)
    await server.until(lambda: server.requests["patch", "events"] == 1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    (event,) = server.objects(EVENTS)
    assert event["series"]["count"] == 2
