"""Small valid objects."""

from typing import Any

Json = dict[str, Any]


def a_slice(name: str = "", *, node: str = "n1", generate: str = "", devices: list[Json] | None = None) -> Json:
    metadata = {"generateName": generate} if generate else {"name": name}
    spec: Json = {
        "driver": "gpu.nvidia.com",
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [a_device("gpu-0")] if devices is None else devices,
    }
    return {"metadata": metadata, "spec": spec}


def a_device(name: str, **fields: object) -> Json:
    return {
        "name": name,
        "attributes": {"type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "80Gi"}},
        **fields,
    }


def a_claim(name: str, *, namespace: str = "default", devices: tuple[str, ...] = ()) -> Json:
    results = [{"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": d} for d in devices]
    body: Json = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    if results:
        body["status"] = {"allocation": {"devices": {"results": results}}}
    return body
