"""Tells the kubelet what is known of each device, in both versions of DRAResourceHealth.

A report goes out when something changed, and again once a third of its lease has passed; but only with a report of a
new look by the prober, never from a timer here: what nobody looks at any more must turn Unknown. Every message holds
all devices.

The kubelet's values are kept per driver, not per instance, and the end of *any* instance's stream clears them all. So
an instance that isn't active keeps its stream open and silent: ending it would clear what the active one reported
(and the kubelet would open it again 5 s later), and sending would make the pod's status flap between two prober's
words. ``HealthGate.resend`` is for the moment when another instance's stream has ended: the newest look goes out
again, if it is still fresh.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import grpc.aio

from kubeletplugin.clock import Clock
from kubeletplugin.pb.dra_health.v1 import api_pb2 as v1
from kubeletplugin.pb.dra_health.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2 as v1alpha1
from kubeletplugin.pb.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc

MAX_MESSAGE_BYTES = 1024
"""The kubelet cuts longer ones at this many bytes, in the middle of a character if need be."""

Context = grpc.aio.ServicerContext[Any, Any]


class DeviceState(Enum):
    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """``message`` is shown in the pod's status; ``last_updated`` in Unix seconds."""

    pool: str
    device: str
    state: DeviceState
    message: str
    last_updated: int

    def value(self) -> tuple[str, str, DeviceState, str]:
        """What a change of is worth a message."""
        return self.pool, self.device, self.state, self.message


@dataclass(frozen=True, slots=True)
class HealthReport:
    """One look at all devices, begun at ``made_at`` (Clock.monotonic). ``cycle`` rises from look to look; the kubelet
    forgets the values after ``lease`` seconds."""

    cycle: int
    statuses: tuple[DeviceStatus, ...]
    made_at: float
    lease: int = 30


class HealthSource(Protocol):
    """The prober's side, implemented in the health layer."""

    async def next_report(self, after: int) -> HealthReport:
        """The newest report with a cycle above ``after``, as soon as there is one; 0 is below all."""


class HealthGate:
    """Whether this instance may report, and how often everything had to be sent anew."""

    def __init__(self) -> None:
        self.open = False
        self.ended = False
        self.resends = 0
        self.version = 0
        self._changed = asyncio.Event()

    def set_active(self, active: bool) -> None:
        self.open = active
        self._notify()

    def resend(self) -> None:
        """Makes every stream send all values once more."""
        self.resends += 1
        self._notify()

    def end(self) -> None:
        """Ends all streams, the first step of a stop: a server with an open stream waits for its whole grace."""
        self.ended = True
        self._notify()

    async def changed(self, version: int) -> None:
        """Returns when ``version`` is over, at once if it is."""
        while self.version == version:
            await self._changed.wait()

    def _notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


class HealthStreams:
    """Yields the reports that one stream sends."""

    def __init__(self, source: HealthSource, gate: HealthGate, clock: Clock) -> None:
        self._source = source
        self._gate = gate
        self._clock = clock

    async def reports(self) -> AsyncIterator[HealthReport]:
        cycle, resends = 0, self._gate.resends
        sent: HealthReport | None = None
        while not self._gate.ended:
            version = self._gate.version
            if not self._gate.open or resends != self._gate.resends:
                cycle, resends, sent = 0, self._gate.resends, None
            if not self._gate.open:
                await self._gate.changed(version)
                continue
            report = await self._next(cycle, version)
            if report is None:
                continue
            cycle = report.cycle
            if self._fresh(report) and (sent is None or due(sent, report)):
                sent = report
                yield report

    def _fresh(self, report: HealthReport) -> bool:
        """An old look is no news: the kubelet dates a value by when it came."""
        return self._clock.monotonic() - report.made_at <= report.lease / 3

    async def _next(self, cycle: int, version: int) -> HealthReport | None:
        """The next report, or None if the gate changed first."""
        report = asyncio.ensure_future(self._source.next_report(cycle))
        changed = asyncio.ensure_future(self._gate.changed(version))
        try:
            await asyncio.wait((report, changed), return_when=asyncio.FIRST_COMPLETED)
            return None if changed.done() else report.result()
        finally:
            report.cancel()
            changed.cancel()
            await asyncio.gather(report, changed, return_exceptions=True)


def due(sent: HealthReport, report: HealthReport) -> bool:
    changed = [status.value() for status in sent.statuses] != [status.value() for status in report.statuses]
    return changed or report.made_at - sent.made_at >= report.lease / 3


def cut(message: str) -> str:
    """At most MAX_MESSAGE_BYTES, ending on a whole character."""
    data = message.encode()
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."


class HealthV1(v1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    async def NodeWatchResources(
        self, request: v1.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[v1.NodeWatchResourcesResponse]:
        async for report in self._streams.reports():
            yield v1.NodeWatchResourcesResponse(
                devices=[
                    v1.DeviceHealth(
                        device=v1.DeviceIdentifier(pool_name=status.pool, device_name=status.device),
                        health=V1_STATES[status.state],
                        last_updated_time=status.last_updated,
                        health_check_timeout_seconds=report.lease,
                        message=cut(status.message),
                    )
                    for status in report.statuses
                ]
            )


class HealthV1Alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    async def NodeWatchResources(
        self, request: v1alpha1.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[v1alpha1.NodeWatchResourcesResponse]:
        async for report in self._streams.reports():
            yield v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    v1alpha1.DeviceHealth(
                        device=v1alpha1.DeviceIdentifier(pool_name=status.pool, device_name=status.device),
                        health=V1ALPHA1_STATES[status.state],
                        last_updated_time=status.last_updated,
                        health_check_timeout_seconds=report.lease,
                        message=cut(status.message),
                    )
                    for status in report.statuses
                ]
            )


V1_STATES = {
    DeviceState.UNKNOWN: v1.UNKNOWN,
    DeviceState.HEALTHY: v1.HEALTHY,
    DeviceState.UNHEALTHY: v1.UNHEALTHY,
}
V1ALPHA1_STATES = {
    DeviceState.UNKNOWN: v1alpha1.UNKNOWN,
    DeviceState.HEALTHY: v1alpha1.HEALTHY,
    DeviceState.UNHEALTHY: v1alpha1.UNHEALTHY,
}


def add_to_server(server: grpc.aio.Server, streams: HealthStreams) -> None:
    v1_grpc.add_DRAResourceHealthServicer_to_server(HealthV1(streams), server)
    v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(HealthV1Alpha1(streams), server)
