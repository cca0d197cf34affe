"""The agent's metrics: counters that its parts raise, and a collector for what is read when it is scraped.

A registry of its own, so that two agents in one process (as tests have them) don't meet. Counting never raises and
never waits; it may be done from any thread.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.registry import Collector

from deviceclasses.names import DRIVER_NAME
from kubeapi.errors import ApiError
from kubeletplugin.app.metrics import families
from kubeletplugin.app.metrics.families import Family

OPERATIONS = ("prepare", "unprepare")
OUTCOMES = ("success", "error")
PREPARE_ERROR, UNPREPARE_ERROR = "prepare_devices", "unprepare_devices"


class Metrics:
    """One per agent. A part that counts something adds a family to the catalogue and an attribute here."""

    def __init__(self) -> None:
        # A time of creation beside each counter would be as many series again, for a protocol that few scrapers use.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._counter(families.REQUESTS)
        self.request_duration = self._histogram(families.REQUEST_DURATION)
        self.requests_inflight = self._gauge(families.REQUESTS_INFLIGHT)
        self.prepare_errors = self._counter(families.PREPARE_ERRORS)
        self.unprepare_errors = self._counter(families.UNPREPARE_ERRORS)
        self.claim_duration = self._histogram(families.CLAIM_DURATION)
        self.sweeps = self._counter(families.SWEEPS)
        self.holds_ended = self._counter(families.HOLDS_ENDED)
        self.claims_healed = self._counter(families.CLAIMS_HEALED)
        self.drains_overdue = self._counter(families.DRAINS_OVERDUE)
        self.slice_writes = self._counter(families.SLICE_WRITES)
        self.slice_failures = self._counter(families.SLICE_FAILURES)
        self.dropped_fields = self._counter(families.DROPPED_FIELDS)
        self.left_out = self._counter(families.LEFT_OUT)
        self.nvml_errors = self._counter(families.NVML_ERRORS)
        self.nvml_timeouts = self._counter(families.NVML_TIMEOUTS)
        self.api_duration = self._histogram(families.API_DURATION)
        self.api_errors = self._counter(families.API_ERRORS)
        self.pod_wakes = self._counter(families.POD_WAKES)
        self.pod_wake_errors = self._counter(families.POD_WAKE_ERRORS)
        self.takeovers = self._counter(families.TAKEOVERS)
        self._begin_at_zero()

    def nvml_timed_out(self, key: str) -> None:
        """``key`` as of nvml.worker."""
        self.nvml_timeouts.labels(key).inc()

    def pod_woken(self, reason: str) -> None:
        self.pod_wakes.labels(reason).inc()

    def wake_failed(self, error: ApiError) -> None:
        self.pod_wake_errors.labels(str(error.status)).inc()

    def add(self, collector: Collector) -> None:
        """For series that are made at each scrape."""
        self.registry.register(collector)

    def _begin_at_zero(self) -> None:
        """A rate over a counter's first appearance misses its first step, so those that matter are there from the
        start."""
        for operation in OPERATIONS:
            self.requests.labels(DRIVER_NAME, operation)
            self.request_duration.labels(DRIVER_NAME, operation)
            self.requests_inflight.labels(DRIVER_NAME, operation)
            for outcome in OUTCOMES:
                self.claim_duration.labels(operation, outcome)
        self.prepare_errors.labels(DRIVER_NAME, PREPARE_ERROR)
        self.unprepare_errors.labels(DRIVER_NAME, UNPREPARE_ERROR)
        for reason in ("refused", "late", "unasked"):
            self.pod_wakes.labels(reason)
        for verb in ("create", "update", "delete"):
            self.slice_writes.labels(verb)

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self.registry)

    def _gauge(self, family: Family) -> Gauge:
        return Gauge(family.name, family.help, family.labels, registry=self.registry)

    def _histogram(self, family: Family) -> Histogram:
        return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=self.registry)
