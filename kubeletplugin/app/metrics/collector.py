"""The series that are made at each scrape from what the agent knows at that moment.

Those about the node (devices, claims, holds) come from the active instance only, so that an upgrade's two instances
don't count the same GPU twice; absent isn't zero.
"""

import datetime
import importlib.metadata
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.app.metrics import families
from kubeletplugin.app.metrics.claim_info import FindPod, claim_devices
from kubeletplugin.app.metrics.families import Family
from kubeletplugin.app.metrics.view import AgentView, LedgerView, LedgerViews
from kubeletplugin.clock import Clock
from kubeletplugin.health.verdict import judge
from kubeletplugin.inventory.model import DeviceKind, Inventory
from kubeletplugin.ledger.model import Hold, HoldState, Route

_STATES = ("available", "held", "draining", "withheld", "excluded")

Samples = Mapping[tuple[str, ...], float]
"""By the values of the labels."""


class NodeCollector(Collector):
    """Call ``ledger.refresh`` before a scrape."""

    def __init__(self, agent: Callable[[], AgentView], ledger: LedgerViews, find_pod: FindPod, clock: Clock) -> None:
        """``find_pod`` gives this node's pod of a UID, as far as it is known."""
        self._agent = agent
        self._find_pod = find_pod
        self._ledger = ledger
        self._clock = clock
        self._version = _version()

    def collect(self) -> Iterator[Metric]:
        view = self._agent()
        yield from self._about_the_agent(view)
        if view.epoch is None:
            return
        if view.inventory is not None:
            yield _gauge(families.DRIVER_INFO, {(view.inventory.driver_version,): 1})
            yield _gauge(families.DEVICE_HEALTH, _health(view.inventory))
        ledger = self._ledger.view
        if ledger is not None:
            yield from self._about_claims(view, ledger)

    def _about_the_agent(self, view: AgentView) -> Iterator[Metric]:
        yield _gauge(families.BUILD_INFO, {(self._version, view.instance): 1})
        yield _gauge(families.ACTIVE, {(): view.epoch is not None})
        yield _gauge(families.READY, {(): view.ready})
        yield _gauge(families.REGISTERED, {(): view.registered})
        if view.epoch is not None:
            yield _gauge(families.EPOCH, {(): view.epoch})
            yield _gauge(families.SLICES_ACCEPTED, {(): view.slices_accepted})
        yield _counter(families.EVENTS_WRITTEN, view.events_written)
        yield _counter(families.EVENTS_DROPPED, view.events_dropped)

    def _about_claims(self, view: AgentView, ledger: LedgerView) -> Iterator[Metric]:
        inventory, snapshot = view.offered or Inventory(""), ledger.snapshot
        yield _gauge(families.DEVICES, _devices(inventory, snapshot.holds))
        yield _gauge(families.HOLDS, _holds(snapshot.holds))
        yield _gauge(families.OLDEST_DRAIN, {(): self._oldest_drain(snapshot.holds)})
        yield _gauge(families.PREPARED_DEVICES, _prepared(view.node, snapshot.holds))
        yield _gauge(families.CLAIMS_PREPARED, {(): len(snapshot.claims)})
        yield _gauge(families.CLAIMS_WAITING, {(): ledger.waiting})
        yield _gauge(families.LEDGER_SIZE, {(): ledger.size_bytes})
        yield _gauge(families.VIEW_AGE, {(): self._ledger.age})
        yield _gauge(families.CLAIM_DEVICE_INFO, dict.fromkeys(claim_devices(snapshot, inventory, self._find_pod), 1.0))

    def _oldest_drain(self, holds: Iterable[Hold]) -> float:
        now = self._clock.now()
        begun = [datetime.datetime.fromisoformat(hold.since) for hold in holds if hold.state is HoldState.DRAINING]
        return max(((now - since).total_seconds() for since in begun), default=0.0)


def _version() -> str:
    try:
        return importlib.metadata.version("gpuclaim")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree, which must cost no more than this label


def _gauge(family: Family, samples: Samples) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in samples.items():
        metric.add_metric(labels, value)
    return metric


def _counter(family: Family, value: float) -> Metric:
    return CounterMetricFamily(family.name, family.help, value=value)


def _health(inventory: Inventory) -> Samples:
    return {
        (device.name, device.kind.value, device.uuid, device.pci_bus_id, judge(device, inventory).health.value): 1
        for device in inventory.devices
    }


def _devices(inventory: Inventory, holds: Iterable[Hold]) -> Samples:
    """Each device in one state. What is wrong with it comes first, since that is what somebody is called for: a lost
    GPU that a claim holds counts as withheld, and its hold among the holds. A withheld GPU counts once, with all that
    is on it."""
    states: dict[str, str] = {}
    for hold in holds:
        if not hold.device.admin and states.get(hold.device.uuid) != HoldState.DRAINING:
            states[hold.device.uuid] = hold.state.value
    counts: Counter[tuple[str, ...]] = Counter({(kind.value, state): 0 for kind in DeviceKind for state in _STATES})
    withheld = {gpu.uuid for gpu in inventory.withheld}
    for device in inventory.devices:
        if device.gpu_uuid not in withheld:
            counts[device.kind.value, "withheld" if device.problem else states.get(device.uuid, "available")] += 1
    for gpu in inventory.withheld:
        counts[DeviceKind.GPU.value, "excluded" if gpu.excluded else "withheld"] += 1
    return counts


def _holds(holds: Iterable[Hold]) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter(dict.fromkeys(itertools.product(Route, HoldState), 0))
    counts.update((hold.holder.route, hold.state) for hold in holds)
    return counts


def _prepared(node: str, holds: Iterable[Hold]) -> Samples:
    counts: Counter[tuple[str, ...]] = Counter({(node, DRIVER_NAME, kind.value): 0 for kind in DeviceKind})
    for hold in holds:
        if hold.state is HoldState.HELD and hold.holder.route is Route.CLAIM:
            kind = DeviceKind.GPU if hold.device.whole_gpu else DeviceKind.MIG
            counts[node, DRIVER_NAME, kind.value] += 1
    return counts
