"""What `gpuclaim status` shows: devices, who holds them since when, and what is draining and why.

The same shape from a running agent and from the ledger's file alone; without an agent there is no inventory, and the
devices are those that have a name or a hold.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Hold, HoldState, Route, Snapshot
from kubeletplugin.prepare.model import ClaimRef

FREE, PREPARING = "free", "preparing"
"""Besides what a hold may be."""


def render(
    snapshot: Snapshot, inventory: Inventory | None = None, waiting: Iterable[tuple[ClaimRef, str]] = ()
) -> dict[str, Any]:
    """JSON-able. ``devices[].state`` is free, preparing (its holder's pods can't have it yet), held or draining;
    administrative access doesn't count for it. A device
    with a ``problem`` isn't given to anybody new."""
    claims = {record.uid: record for record in snapshot.claims}
    waiting = tuple(waiting)
    unready = {ref.uid for ref, _ in waiting}
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
                "state": _state(holds.get(uuid, ()), unready),
                "problem": problems.get(uuid, ""),
                "holders": [_holder(hold, claims, unready) for hold in holds.get(uuid, ())],
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


def _state(holds: Iterable[Hold], unready: Collection[str]) -> str:
    states = {_hold_state(hold, unready) for hold in holds if not hold.device.admin}
    return next(
        (state for state in (HoldState.DRAINING.value, HoldState.HELD.value, PREPARING) if state in states), FREE
    )


def _hold_state(hold: Hold, unready: Collection[str]) -> str:
    return PREPARING if hold.state is HoldState.HELD and hold.holder.id in unready else hold.state.value


def _holder(hold: Hold, claims: Mapping[str, ClaimRecord], unready: Collection[str]) -> dict[str, Any]:
    record = claims.get(hold.holder.id) if hold.holder.route is Route.CLAIM else None
    pods = hold.pods if hold.state is HoldState.DRAINING or record is None else record.pods
    return {
        "route": hold.holder.route.value,
        "uid": hold.holder.id,
        "namespace": hold.holder.namespace,
        "name": hold.holder.name,
        "state": _hold_state(hold, unready),
        "since": hold.since,
        "reason": hold.reason,
        "admin": hold.device.admin,
        "shareId": hold.device.share_id,
        "pods": sorted(pods),
    }
