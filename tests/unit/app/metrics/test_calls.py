"""What the kubelet asked and what it was answered, as numbers."""

from collections.abc import Mapping, Sequence

import pytest

from kubeletplugin.app.metrics.calls import CountedCalls
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.fakes.clock import VirtualClock
from tests.unit.app.metrics.exposition import Exposition, scraped

pytestmark = pytest.mark.anyio

GOOD, BAD = ClaimRef("uid-1", "ns", "good"), ClaimRef("uid-2", "ns", "bad")
DURATION = "gpuclaim_claim_duration_seconds"


class Kubelet:
    """Calls through the counter. The handler refuses the claim that is called bad; each call takes ``seconds``."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = Metrics()
        self.seconds = 0.02
        self.inflight: list[float | None] = []
        self.broken = False
        self.calls = CountedCalls(self, self.metrics, self.clock)

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        errors = await self._serve(claims)
        return {uid: PrepareResult(error=error) for uid, error in errors.items()}

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        return await self._serve(claims)

    async def _serve(self, claims: Sequence[ClaimRef]) -> dict[str, str]:
        self.inflight = [
            self.seen.value("nvidia_dra_requests_inflight", operation=it) for it in ("prepare", "unprepare")
        ]
        await self.clock.advance(self.seconds)
        if self.broken:
            raise RuntimeError("odd")
        return {claim.uid: "refused" if claim.name == "bad" else "" for claim in claims}

    @property
    def seen(self) -> Exposition:
        return scraped(self.metrics.registry)


async def test_success_is_counted_as_the_peer_counts_it() -> None:
    kubelet = Kubelet()
    await kubelet.calls.prepare([GOOD], 0.0)
    await kubelet.calls.unprepare([GOOD], 0.0)
    await kubelet.calls.unprepare([GOOD], 0.0)
    seen = kubelet.seen
    assert seen.series("nvidia_dra_requests_total", "driver", "operation") == {
        ("gpu.nvidia.com", "prepare"): 1,
        ("gpu.nvidia.com", "unprepare"): 2,
    }
    assert seen.value("nvidia_dra_request_duration_seconds_count", operation="unprepare") == 2
    assert seen.value("nvidia_dra_request_duration_seconds_sum", operation="prepare") == pytest.approx(0.02)
    assert seen.series("nvidia_dra_node_prepare_errors_total", "error_type") == {}


async def test_a_failure_counts_for_its_claim_only_and_keeps_its_time() -> None:
    kubelet = Kubelet()
    kubelet.seconds = 43.0
    await kubelet.calls.prepare([GOOD, BAD], 0.0)
    await kubelet.calls.unprepare([BAD], 0.0)
    await kubelet.calls.unprepare([BAD], 0.0)
    seen = kubelet.seen
    assert seen.series(f"{DURATION}_count", "operation", "outcome") == {
        ("prepare", "success"): 1,
        ("prepare", "error"): 1,
        ("unprepare", "error"): 2,
    }
    assert seen.value(f"{DURATION}_sum", operation="prepare", outcome="error") == pytest.approx(43.0)
    assert seen.value(f"{DURATION}_bucket", operation="prepare", outcome="error", le="45.0") == 1
    assert seen.value(f"{DURATION}_bucket", operation="prepare", outcome="error", le="25.6") == 0
    assert seen.series("nvidia_dra_requests_total", "operation") == {("prepare",): 1}
    assert seen.series("nvidia_dra_node_prepare_errors_total", "driver", "error_type") == {
        ("gpu.nvidia.com", "prepare_devices"): 1
    }
    assert seen.series("nvidia_dra_node_unprepare_errors_total", "error_type") == {("unprepare_devices",): 2}


async def test_a_call_that_breaks_counts_as_failed_for_all_its_claims() -> None:
    kubelet = Kubelet()
    kubelet.broken = True
    with pytest.raises(RuntimeError, match="odd"):
        await kubelet.calls.prepare([GOOD, BAD], 0.0)
    assert kubelet.seen.value(f"{DURATION}_count", operation="prepare", outcome="error") == 2


async def test_calls_in_flight() -> None:
    kubelet = Kubelet()
    await kubelet.calls.prepare([GOOD, BAD], 0.0)
    assert kubelet.inflight == [2, 0]
    assert kubelet.seen.series("nvidia_dra_requests_inflight", "operation") == {}


def test_what_counts_calls_is_there_from_the_start() -> None:
    seen = Kubelet().seen
    for operation in ("prepare", "unprepare"):
        assert seen.value("nvidia_dra_requests_total", operation=operation) == 0
        assert seen.value(f"{DURATION}_count", operation=operation, outcome="error") == 0
    assert seen.value("nvidia_dra_node_prepare_errors_total") == 0
