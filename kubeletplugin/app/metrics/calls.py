"""Counting what the kubelet asked and what it was answered."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.app.metrics.metrics import PREPARE_ERROR, UNPREPARE_ERROR, Metrics
from kubeletplugin.clock import Clock
from kubeletplugin.prepare.model import ClaimHandler, ClaimRef, PrepareResult

T = TypeVar("T")


class CountedCalls:
    """A ClaimHandler around the one that the kubelet's calls go to, wherever they are served: so a call that is passed
    on to the active instance counts once, in the instance that the kubelet called.

    A claim's time is that of its call: no claim has its answer before all of the call have.
    """

    def __init__(self, handler: ClaimHandler, metrics: Metrics, clock: Clock) -> None:
        self._handler = handler
        self._metrics = metrics
        self._clock = clock

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        def failed(result: PrepareResult) -> bool:
            return bool(result.error)

        return await self._count("prepare", self._handler.prepare, claims, deadline, failed)

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        return await self._count("unprepare", self._handler.unprepare, claims, deadline, bool)

    async def _count(
        self,
        operation: str,
        work: Callable[[Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]],
        claims: Sequence[ClaimRef],
        deadline: float,
        failed: Callable[[T], bool],
    ) -> Mapping[str, T]:
        inflight = self._metrics.requests_inflight.labels(DRIVER_NAME, operation)
        begun = self._clock.monotonic()
        results: Mapping[str, T] = {}
        inflight.inc(len(claims))
        try:
            results = await work(claims, deadline)
            return results
        finally:
            inflight.dec(len(claims))
            seconds = self._clock.monotonic() - begun
            for claim in claims:
                ok = claim.uid in results and not failed(results[claim.uid])
                self._answered(operation, seconds, ok)

    def _answered(self, operation: str, seconds: float, ok: bool) -> None:
        metrics = self._metrics
        metrics.claim_duration.labels(operation, "success" if ok else "error").observe(seconds)
        if ok:
            metrics.requests.labels(DRIVER_NAME, operation).inc()
            metrics.request_duration.labels(DRIVER_NAME, operation).observe(seconds)
        elif operation == "prepare":
            metrics.prepare_errors.labels(DRIVER_NAME, PREPARE_ERROR).inc()
        else:
            metrics.unprepare_errors.labels(DRIVER_NAME, UNPREPARE_ERROR).inc()
