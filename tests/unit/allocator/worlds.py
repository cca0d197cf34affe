"""Slices, claims and classes to allocate from."""

import datetime
from collections.abc import Sequence
from typing import Any

from allocator.firstfit import Cluster, allocate
from deviceclasses.catalogue import device_classes

NOW = datetime.datetime(2026, 12, 1, 10, 24, 22, tzinfo=datetime.UTC)


NODE = "node-1"


ROOT = "resource.kubernetes.io/pcieRoot"


def gpu(index: int, root: str = "pci0000:00", **more: Any) -> dict[str, Any]:
    attributes = {"type": {"string": "gpu"}, "index": {"int": index}, ROOT: {"string": root}}
    memory = more.pop("memory", "80Gi")
    return {"name": f"gpu-{index}", "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def mig(name: str, parent: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": parent}}}


def resource_slice(
    *devices: dict[str, Any],
    name: str = "00000-a",
    pool: str = NODE,
    driver: str = "gpu.nvidia.com",
    count: int = 1,
    generation: int = 1,
    **where: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            **(where or {"nodeName": NODE}),
            "devices": list(devices),
        },
    }


def exactly(name: str = "gpu", device_class: str = "gpu.nvidia.com", *cel: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "exactly": _request(device_class, *cel, **more)}


def alternative(name: str, device_class: str, *cel: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **_request(device_class, *cel, **more)}


def _request(device_class: str, *cel: str, **more: Any) -> dict[str, Any]:
    selectors = {"selectors": [{"cel": {"expression": expression}} for expression in cel]} if cel else {}
    return {"deviceClassName": device_class, **selectors, **more}


def claim(*requests: dict[str, Any], name: str = "mine", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"devices": {"requests": list(requests), **more}},
    }


def holding(*devices: str, name: str = "other", admin: bool = False) -> dict[str, Any]:
    results = [
        {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}
        | ({"adminAccess": True} if admin else {})
        for device in devices
    ]
    return {**claim(name=name), "status": {"allocation": {"devices": {"results": results}}}}


def cluster(*slices: dict[str, Any], claims: Sequence[dict[str, Any]] = ()) -> Cluster:
    return Cluster(slices or (resource_slice(*(gpu(i) for i in range(4))),), device_classes(), claims)


def run(world: Cluster, *claims: dict[str, Any]) -> list[str]:
    """``request=device`` of every result."""
    return [
        f"{result['request']}={result['device']}"
        for allocation in allocate(claims, world, NODE, NOW)
        for result in allocation["devices"]["results"]
    ]
