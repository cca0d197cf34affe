"""The catalogue: the peer's classes, and selectors that harm no other driver's devices."""

from typing import Any

import pytest

from allocator.cel import compile_selector
from deviceclasses.catalogue import device_classes

CLASSES = {item["metadata"]["name"]: item for item in device_classes()}

PEER = {
    "gpu.nvidia.com": ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    "mig.nvidia.com": ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"),
}
"""As NVIDIA's chart writes them. Its gpu.nvidia.com also has extendedResourceName: nvidia.com/gpu; ours hasn't until
the classic route is ours as well, since a device plugin of that name on a node would hand out the same GPUs."""


@pytest.mark.parametrize("name", PEER)
def test_same_selector_as_the_peer(name: str) -> None:
    assert CLASSES[name]["spec"] == {"selectors": [{"cel": {"expression": PEER[name]}}]}


def test_objects_are_complete_for_server_side_apply() -> None:
    for item in CLASSES.values():
        assert (item["apiVersion"], item["kind"]) == ("resource.k8s.io/v1", "DeviceClass")
        assert set(item) == {"apiVersion", "kind", "metadata", "spec"}
        assert set(item["metadata"]) == {"name"}


OURS = "gpu.nvidia.com"
GPU: dict[str, Any] = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
MIG: dict[str, Any] = {"name": "mig-0", "attributes": {"type": {"string": "mig"}}}


@pytest.mark.parametrize(
    ("driver", "device", "matching"),
    [
        (OURS, GPU, {"gpu.nvidia.com"}),
        (OURS, MIG, {"mig.nvidia.com"}),
        (OURS, {"name": "vfio-0", "attributes": {"type": {"string": "vfio"}}}, set()),
        ("nic.example.com", {"name": "nic-0"}, set()),
        ("nic.example.com", GPU, set()),
        ("nic.example.com", {"name": "x", "attributes": {"gpu.nvidia.com/type": {"string": "gpu"}}}, set()),
        ("compute-domain.nvidia.com", {"name": "channel-0", "attributes": {"id": {"int": 0}}}, set()),
        ("odd.example.com", {"name": "x", "attributes": {"gpu.nvidia.com/type": {"int": 1}}}, set()),
    ],
)
def test_selects_its_own_and_fails_on_nobodys(driver: str, device: dict[str, Any], matching: set[str]) -> None:
    selected = {
        name
        for name, item in CLASSES.items()
        if all(compile_selector(it["cel"]["expression"]).matches(driver, device) for it in item["spec"]["selectors"])
    }
    assert selected == matching
