"""Devices and slices for the tables."""

from typing import Any

from kubeapi.client import Json
from kubeletplugin.inventory.model import Attribute, Device, DeviceKind, Inventory
from kubeletplugin.slices.pool import Pool, PoolContent, Publisher, cut_pool

DRIVER = "gpu.nvidia.com"
NODE = "node-1"
PUBLISHER = Publisher(DRIVER, NODE, "node-uid")


def plain(name: str, **more: Any) -> Json:
    """A device without attributes: enough where only order and identity matter."""
    return {"name": name, **more}


def taint(value: str = "79", effect: str = "NoSchedule", **more: Any) -> Json:
    return {"key": "gpu.nvidia.com/xid", "value": value, "effect": effect, **more}


def pool_of(*contents: str, name: str = NODE) -> Pool:
    """A pool of slices, each given as its devices' names: ``pool_of("a b", "c")``."""
    from kubeletplugin.slices.pool import SliceContent

    slices = tuple(SliceContent(tuple(plain(device) for device in content.split())) for content in contents)
    return Pool(name, slices)


def content_of(*devices: Json) -> PoolContent:
    return PoolContent(devices)


def many(count: int) -> tuple[Json, ...]:
    return tuple(plain(f"gpu-{index}") for index in range(count))


def stored(name: str, devices: str = "", *, generation: int = 1, count: int = 1, pool: str = NODE, **spec: Any) -> Json:
    """A slice as the server has it: ``name`` is what follows in ``<index>-x``."""
    body: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            **spec,
        },
    }
    if devices:
        body["spec"]["devices"] = [plain(device) for device in devices.split()]
    return body


def summary(slices: list[Json]) -> list[str]:
    """Index, generation/count and devices of each slice: ``00000 g1/1 a b``."""
    lines = []
    for item in slices:
        pool = item["spec"]["pool"]
        devices = " ".join(device["name"] for device in item["spec"].get("devices", ()))
        index = item["metadata"]["name"].split("-")[0]
        lines.append(f"{index} g{pool['generation']}/{pool['resourceSliceCount']} {devices}".rstrip())
    return lines


def gpu_device(index: int, **attributes: Attribute) -> Device:
    """A full GPU with all its core keys."""
    uuid = f"GPU-{index:08x}-0000-0000-0000-000000000000"
    core = {
        "type": Attribute("string", "gpu"),
        "uuid": Attribute("string", uuid),
        "productName": Attribute("string", "NVIDIA H100 80GB HBM3"),
        "brand": Attribute("string", "Nvidia"),
        "architecture": Attribute("string", "Hopper"),
        "cudaComputeCapability": Attribute("version", "9.0.0"),
        "driverVersion": Attribute("version", "580.105.8"),
        "cudaDriverVersion": Attribute("version", "13.0.0"),
        "resource.kubernetes.io/pciBusID": Attribute("string", f"0000:{index:02x}:00.0"),
    }
    return Device(
        name=f"gpu-{index}",
        kind=DeviceKind.GPU,
        uuid=uuid,
        gpu_uuid=uuid,
        minor=index,
        index=index,
        pci_bus_id=f"0000:{index:02x}:00.0",
        attributes=core | attributes,
        capacity={"memory": "81559Mi"},
    )


def inventory_of(*devices: Device) -> Inventory:
    return Inventory("580.105.08", devices)


def empty_pool() -> Pool:
    return cut_pool(NODE, PoolContent())
