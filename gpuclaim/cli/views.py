"""How inventory, slices and status look as tables, and as plain data."""

from collections.abc import Iterable, Iterator
from typing import Any

from gpuclaim.cli.output import print_table
from kubeapi.client import Json
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.slices.validate import Problem


def inventory_data(inventory: Inventory) -> dict[str, Any]:
    return {
        "driverVersion": inventory.driver_version,
        "devices": [
            {
                "name": device.name,
                "uuid": device.uuid,
                "attributes": {name: attribute.value for name, attribute in device.attributes.items()},
                "capacity": dict(device.capacity),
            }
            for device in inventory.devices
        ],
        "withheld": [
            {"index": gpu.index, "uuid": gpu.uuid, "pciBusId": gpu.pci_bus_id, "reason": gpu.reason}
            for gpu in inventory.withheld
        ],
        "notices": [notice.text for notice in inventory.notices],
    }


def print_inventory(inventory: Inventory) -> None:
    print(f"driver {inventory.driver_version}")
    print_table(
        ("DEVICE", "PRODUCT", "MEMORY", "NUMA", "PCI", "UUID"),
        [
            (
                device.name,
                _shown(device.attributes.get("productName"), device.mig.profile if device.mig else ""),
                device.capacity.get("memory", "") + (" unified" if _unified(device.attributes) else ""),
                _shown(device.attributes.get("resource.kubernetes.io/numaNode")),
                device.pci_bus_id,
                device.uuid,
            )
            for device in inventory.devices
        ],
    )
    if inventory.withheld:
        print_table(
            ("WITHHELD", "PCI", "UUID", "REASON"),
            [(f"GPU {gpu.index}", gpu.pci_bus_id, gpu.uuid, gpu.reason) for gpu in inventory.withheld],
        )
    for notice in inventory.notices:
        print(f"note: {notice.text}")


def left_out(inventory: Inventory, problems: Iterable[Problem]) -> Iterator[str]:
    """What the node has and its slices haven't; ``problems`` as of rendering them."""
    for gpu in inventory.withheld:
        yield f"GPU {gpu.uuid or gpu.pci_bus_id or gpu.index} isn't offered: {gpu.reason}"
    yield from map(str, problems)


def _unified(attributes: Any) -> bool:
    found = attributes.get("unifiedMemory")
    return bool(found and found.value)


def _shown(attribute: Any, suffix: str = "") -> str:
    text = "" if attribute is None else str(attribute.value)
    return f"{text} {suffix}".strip()


def print_slices(slices: Iterable[Json]) -> None:
    rows = []
    for piece in slices:
        for device in piece["spec"].get("devices", []):
            attributes = ", ".join(
                f"{name.removeprefix('resource.kubernetes.io/')}={_text(next(iter(value.values())))}"
                for name, value in device.get("attributes", {}).items()
            )
            capacity = ", ".join(f"{name}={value['value']}" for name, value in device.get("capacity", {}).items())
            rows.append((piece["metadata"]["name"], device["name"], capacity, attributes))
    print_table(("SLICE", "DEVICE", "CAPACITY", "ATTRIBUTES"), rows)


def print_status(status: dict[str, Any]) -> None:
    ready = status.get("ready")
    print(f"agent: {status['state']}" + ("" if ready in (None, True) else f" (not ready: {ready})"))
    if problem := status.get("problem"):
        print(f"driver: {problem}")
    rows = [
        (device["name"], device["state"], *_holder_columns(holder, device.get("problem", "")))
        for device in status.get("devices", [])
        for holder in device["holders"] or [None]
    ]
    print_table(("DEVICE", "STATE", "HOLDER", "SINCE", "PODS", "REASON"), rows)
    for entry in status.get("waiting", []):
        claim = entry["claim"]
        print(f"waiting: claim {claim['namespace']}/{claim['name']}: {entry['for']}")
    for gpu in status.get("withheld", []):
        print(f"withheld: GPU {gpu['index']} {gpu['uuid']}: {gpu['reason']}")
    for problem in status.get("cdiProblems", []):
        print(f"harmful: {problem}")


def _holder_columns(holder: dict[str, Any] | None, problem: str) -> tuple[str, str, str, str]:
    if holder is None:
        return ("", "", "", problem)
    name = f"{holder['namespace']}/{holder['name']}" if holder["name"] else "unknown"
    return (
        name + (" (admin)" if holder["admin"] else ""),
        holder["since"],
        ", ".join(holder["pods"]),
        holder["reason"] or problem,
    )


def _text(value: object) -> str:
    """As CEL and YAML spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
