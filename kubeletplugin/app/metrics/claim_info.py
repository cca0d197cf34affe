"""Who has which device now: one label set per claim, device, pod and container."""

from collections.abc import Callable, Collection, Iterator

from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.inventory.model import DeviceKind, Inventory
from kubeletplugin.ledger.model import ClaimRecord, Hold, HoldState, Route, Snapshot
from kubeletplugin.prepare import record as records

FindPod = Callable[[str], PodRecord | None]

_ENDED = frozenset({"Succeeded", "Failed"})
_NOBODY = ("", "", "")


def claim_devices(snapshot: Snapshot, inventory: Inventory, find_pod: FindPod) -> Iterator[tuple[str, ...]]:
    """Label values in the order of families.CLAIM_DEVICE_INFO. A device whose pod isn't known, or whose container, is
    there all the same, with these labels empty."""
    claims = {record.uid: record for record in snapshot.claims}
    for hold in snapshot.holds:
        record = claims.get(hold.holder.id)
        if hold.state is HoldState.HELD and hold.holder.route is Route.CLAIM and record is not None:
            for request in records.requests_of(record, hold.device.uuid):
                for pod in _users(record, request, find_pod):
                    yield (record.namespace, record.name, record.uid, request, *pod, *_device(hold, inventory))


def _users(record: ClaimRecord, request: str, find_pod: FindPod) -> Collection[tuple[str, str, str]]:
    """Name, UID and container."""
    pods = [pod for pod in map(find_pod, sorted(record.pods)) if pod is not None and pod.phase not in _ENDED]
    return [(pod.name, pod.uid, container) for pod in pods for container in _containers(pod, record, request)] or [
        _NOBODY
    ]


def _containers(pod: PodRecord, record: ClaimRecord, request: str) -> Collection[str]:
    """Those that use the request; a subrequest, ``request/alternative``, is used by its request's name."""
    names = {(record.name, ""), (record.name, request), (record.name, request.partition("/")[0])}
    return [container.name for container in pod.containers if names & set(container.claims)] or [""]


def _device(hold: Hold, inventory: Inventory) -> tuple[str, ...]:
    device = inventory.by_uuid(hold.device.uuid)
    return (
        hold.device.name,
        DeviceKind.GPU if hold.device.whole_gpu else DeviceKind.MIG,
        hold.device.uuid,
        device.pci_bus_id if device else "",
        "true" if hold.device.admin else "false",
        hold.device.gpu_uuid,
        # Empty is the same as no label, which is what the DCGM exporter has for a whole GPU.
        str(device.mig.gpu_instance_id) if device and device.mig else "",
    )
