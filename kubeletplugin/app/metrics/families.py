"""The catalogue: every metric that the agent exposes, and nothing else makes one.

Names, labels and types that start with ``nvidia_dra_`` are those of NVIDIA's DRA driver, so that its dashboards and
alerts go on working; ours start with ``gpuclaim_``. Labels take few values: nothing here grows with the number of
claims that ever were. Only the info series names claims, those that are held now.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

PREPARE_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 45.0)
"""Seconds. From 0.05 to 12.8 those of NVIDIA's driver; below, since a prepare takes 5 to 50 ms; above, to the kubelet's
deadline, since what can clear up is waited for inside the call."""

API_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)


@dataclass(frozen=True, slots=True)
class Family:
    """``help`` is one line that ends without a full stop, as Prometheus' own do."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


# --- as NVIDIA's driver names them ---
REQUESTS = Family(
    "nvidia_dra_requests_total",
    "counter",
    ("driver", "operation"),
    "Claims that the kubelet had prepared or unprepared with success",
)
REQUEST_DURATION = Family(
    "nvidia_dra_request_duration_seconds",
    "histogram",
    ("driver", "operation"),
    "Time until the kubelet had the answer, of claims that succeeded",
    PREPARE_BUCKETS,
)
REQUESTS_INFLIGHT = Family(
    "nvidia_dra_requests_inflight",
    "gauge",
    ("driver", "operation"),
    "Claims in calls of the kubelet that have no answer yet",
)
PREPARED_DEVICES = Family(
    "nvidia_dra_prepared_devices",
    "gauge",
    ("node", "driver", "device_type"),
    "Devices that prepared claims have, administrative access included",
)
PREPARE_ERRORS = Family(
    "nvidia_dra_node_prepare_errors_total",
    "counter",
    ("driver", "error_type"),
    "Claims whose preparing failed; the pod's event says why",
)
UNPREPARE_ERRORS = Family(
    "nvidia_dra_node_unprepare_errors_total",
    "counter",
    ("driver", "error_type"),
    "Claims whose unpreparing failed; the agent's log says why",
)

# --- claims ---
CLAIM_DURATION = Family(
    "gpuclaim_claim_duration_seconds",
    "histogram",
    ("operation", "outcome"),
    "Time until the kubelet had the answer for a claim, by operation (prepare, unprepare) and outcome (success, error)",
    PREPARE_BUCKETS,
)
CLAIMS_PREPARED = Family("gpuclaim_claims_prepared", "gauge", (), "Claims that are prepared on this node")
CLAIMS_WAITING = Family(
    "gpuclaim_claims_waiting",
    "gauge",
    (),
    "Claims that are being prepared or wait for what is in their way; `gpuclaim status` says for what",
)
CLAIM_DEVICE_INFO = Family(
    "gpuclaim_claim_device_info",
    "gauge",
    (
        "namespace",
        "claim",
        "claim_uid",
        "request",
        "pod",
        "pod_uid",
        "container",
        "device",
        "device_type",
        "uuid",
        "pci_address",
        "admin_access",
        "UUID",
        "GPU_I_ID",
    ),
    "Who has which device now, always 1; UUID (of the physical GPU) and GPU_I_ID are spelt as the DCGM exporter does",
)

# --- devices ---
DEVICES = Family(
    "gpuclaim_devices",
    "gauge",
    ("device_type", "state"),
    "Devices by state: available, held, draining, and, be they held or not, withheld (the Node's events say why) and"
    " excluded by the operator",
)
DEVICE_HEALTH = Family(
    "gpuclaim_device_health_info",
    "gauge",
    ("device", "device_type", "uuid", "pci_address", "health"),
    "Health of each device as the kubelet is told (Healthy, Unhealthy, Unknown), always 1",
)
HOLDS = Family("gpuclaim_holds", "gauge", ("route", "state"), "Holds on devices by route and state (held, draining)")
OLDEST_DRAIN = Family(
    "gpuclaim_oldest_drain_seconds",
    "gauge",
    (),
    "How long the device that drains longest has been draining, 0 when none does",
)

# --- keeping order ---
SWEEPS = Family("gpuclaim_sweeps_total", "counter", (), "Checks of all holds against API server and kubelet")
HOLDS_ENDED = Family(
    "gpuclaim_holds_ended_by_check_total",
    "counter",
    (),
    "Claims whose holds a check ended because no unprepare would have",
)
CLAIMS_HEALED = Family(
    "gpuclaim_claims_healed_total",
    "counter",
    (),
    "Claims that were prepared again unasked, because the kubelet believed them prepared; each try counts",
)
DRAINS_OVERDUE = Family(
    "gpuclaim_drains_overdue_total", "counter", (), "Devices that drained for so long that an event was written"
)

# --- slices ---
SLICE_WRITES = Family("gpuclaim_slice_writes_total", "counter", ("verb",), "ResourceSlices written, by verb")
SLICE_FAILURES = Family(
    "gpuclaim_slice_sync_failures_total",
    "counter",
    ("code",),
    "Failed tries to bring the node's slices up to date, by HTTP status (422: refused as invalid, 0: no answer)",
)
DROPPED_FIELDS = Family(
    "gpuclaim_slice_dropped_fields_total",
    "counter",
    (),
    "Fields of slices that the API server didn't keep",
)
LEFT_OUT = Family(
    "gpuclaim_slice_left_out_total",
    "counter",
    (),
    "Devices, or keys of them, that were left out of slices because they are invalid or refused",
)
SLICES_ACCEPTED = Family(
    "gpuclaim_slices_accepted", "gauge", (), "1 while the API server holds exactly the slices that are wanted"
)

# --- what the agent depends on ---
NVML_ERRORS = Family(
    "gpuclaim_nvml_errors_total",
    "counter",
    ("call", "code"),
    "NVML calls that failed, by call and error; calls that the machine doesn't support aren't errors",
)
NVML_TIMEOUTS = Family(
    "gpuclaim_nvml_timeouts_total",
    "counter",
    ("gpu",),
    "NVML calls given up because they, or an earlier one, hung, by the GPU's UUID (or what else is known of it)",
)
API_DURATION = Family(
    "gpuclaim_api_request_duration_seconds",
    "histogram",
    ("verb", "resource"),
    "Time of requests to the API server that got their answer, by verb and resource; watches aren't timed",
    API_BUCKETS,
)
API_ERRORS = Family(
    "gpuclaim_api_errors_total",
    "counter",
    ("verb", "resource", "code"),
    "Requests to the API server that failed, by verb, resource and HTTP status (0: no answer)",
)
EVENTS_WRITTEN = Family("gpuclaim_events_written_total", "counter", (), "Kubernetes Events written")
EVENTS_DROPPED = Family("gpuclaim_events_dropped_total", "counter", (), "Kubernetes Events that could not be written")
LEDGER_SIZE = Family("gpuclaim_ledger_size_bytes", "gauge", (), "Size of the ledger's file and its log")
VIEW_AGE = Family(
    "gpuclaim_ledger_view_age_seconds",
    "gauge",
    (),
    "Age of what the series about claims and holds say; more than 0 when the ledger didn't answer in time",
)

# --- the agent itself ---
BUILD_INFO = Family("gpuclaim_build_info", "gauge", ("version", "instance_uid"), "This agent, always 1")
DRIVER_INFO = Family("gpuclaim_driver_info", "gauge", ("driver_version",), "The NVIDIA driver of the node, always 1")
ACTIVE = Family(
    "gpuclaim_agent_active", "gauge", (), "1 in the instance that serves; series about the node come only from it"
)
READY = Family("gpuclaim_agent_ready", "gauge", (), "1 when registered, active and its slices are accepted")
REGISTERED = Family("gpuclaim_agent_registered", "gauge", (), "1 while the kubelet has this instance registered")
EPOCH = Family(
    "gpuclaim_lease_epoch", "gauge", (), "The lease's epoch in the active instance, raised by each take-over"
)
POD_WAKES = Family(
    "gpuclaim_pod_wakes_total",
    "counter",
    ("reason",),
    "Pods touched because a Prepare that the kubelet would try later would succeed now",
)
POD_WAKE_ERRORS = Family(
    "gpuclaim_pod_wake_errors_total",
    "counter",
    ("code",),
    "Pods that couldn't be touched, by HTTP status (0: no answer)",
)
TAKEOVERS = Family("gpuclaim_takeovers_total", "counter", (), "Take-overs of this instance")

FAMILIES: tuple[Family, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Family))
