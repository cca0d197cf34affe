"""Who has which device now: one label set per claim, device, pod and container."""

from collections.abc import Iterator

from kubeletplugin.inventory.model import DeviceKind, Inventory
from kubeletplugin.ledger.model import Hold, HoldState, Route, Snapshot

_DCGM_NO_INSTANCE = ""
"""A label without a value is the same as none, which is what the DCGM exporter has for a whole GPU."""


def claim_devices(snapshot: Snapshot, inventory: Inventory) -> Iterator[tuple[str, ...]]:
    """Label values in the order of families.CLAIM_DEVICE_INFO."""
    for hold in snapshot.holds:
        if hold.state is HoldState.HELD and hold.holder.route is Route.CLAIM:
            yield _labels(hold, inventory)


def _labels(hold: Hold, inventory: Inventory) -> tuple[str, ...]:
    device = inventory.by_uuid(hold.device.uuid)
    kind = DeviceKind.GPU if hold.device.whole_gpu else DeviceKind.MIG
    return (
        hold.holder.namespace,
        hold.holder.name,
        hold.holder.id,
        "",
        "",
        "",
        "",
        hold.device.name,
        kind.value,
        hold.device.uuid,
        device.pci_bus_id if device else "",
        "true" if hold.device.admin else "false",
        hold.device.gpu_uuid,
        str(device.mig.gpu_instance_id) if device and device.mig else _DCGM_NO_INSTANCE,
    )
