"""What `gpuclaim status` shows: devices, who holds them since when, and what is draining and why.

The same shape from a running agent and from the ledger's file alone; without an agent there is no inventory, and the
devices are those that have a name or a hold.
"""

from collections.abc import Iterable
from typing import Any

from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Hold, HoldState, Route, Snapshot
from kubeletplugin.prepare.model import ClaimRef


def render(
    snapshot: Snapshot, inventory: Inventory | None = None, waiting: Iterable[tuple[ClaimRef, str]] = ()
) -> dict[str, Any]:
    """JSON-able. ``devices[].state`` is free, held or draining; administrative access doesn't count for it. A device
    with a ``problem`` isn't given to anybody new."""
    claims = {record.uid: record for record in snapshot.claims}
    holds: dict[str, list[Hold]] = {}
    for hold in snapshot.holds:
        holds.setdefault(hold.device.uuid, []).append(hold)
    problems = {device.uuid: device.problem for device in inventory.devices} if inventory else {}
    return {
        "bootId": snapshot.boot_id,
        "devices": [
            {
                "name": name,
                "uuid": uuid,
                "state": _state(holds.get(uuid, ())),
                "problem": problems.get(uuid, ""),
                "holders": [_holder(hold, claims) for hold in holds.get(uuid, ())],
            }
            for uuid, name in _devices(snapshot, inventory).items()
        ],
        "withheld": [
            {"index": gpu.index, "uuid": gpu.uuid, "pciBusId": gpu.pci_bus_id, "reason": gpu.reason}
            for gpu in (inventory.withheld if inventory else ())
        ],
        "waiting": [
            {"claim": {"uid": ref.uid, "namespace": ref.namespace, "name": ref.name}, "for": reason}
            for ref, reason in waiting
        ],
    }


def _devices(snapshot: Snapshot, inventory: Inventory | None) -> dict[str, str]:
    """UUID to name: the node's devices in order, then those that only a hold still knows."""
    devices = {device.uuid: device.name for device in inventory.devices} if inventory else {}
    if inventory is None:
        devices = {uuid: name for name, uuid in snapshot.bindings.items()}
    held: Iterable[HeldDevice] = (hold.device for hold in snapshot.holds)
    return devices | {device.uuid: device.name for device in held if device.uuid not in devices}


def _state(holds: Iterable[Hold]) -> str:
    states = {hold.state for hold in holds if not hold.device.admin}
    if HoldState.DRAINING in states:
        return HoldState.DRAINING.value
    return HoldState.HELD.value if states else "free"


def _holder(hold: Hold, claims: dict[str, ClaimRecord]) -> dict[str, Any]:
    record = claims.get(hold.holder.id) if hold.holder.route is Route.CLAIM else None
    pods = hold.pods if hold.state is HoldState.DRAINING or record is None else record.pods
    return {
        "route": hold.holder.route.value,
        "uid": hold.holder.id,
        "namespace": hold.holder.namespace,
        "name": hold.holder.name,
        "state": hold.state.value,
        "since": hold.since,
        "reason": hold.reason,
        "admin": hold.device.admin,
        "shareId": hold.device.share_id,
        "pods": sorted(pods),
    }
