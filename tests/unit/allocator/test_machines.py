"""Selectors over the devices of every machine that is shipped, all in one cluster: none may fail on any of them.

A CEL error on one device fails a pod's scheduling in the whole cluster, so a selector that people write for one
machine has to be harmless on all others.
"""

import asyncio
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.cel import compile_selector
from allocator.firstfit import Cluster, allocate
from allocator.pools import gather_pools
from deviceclasses.catalogue import device_classes
from deviceclasses.quantity import parse_quantity
from kubeletplugin.nvml.simulated.profile import machine_names
from tests.unit.allocator.machines import slices_of_all_machines

DRIVER = "gpu.nvidia.com"


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return asyncio.run(slices_of_all_machines(tmp_path_factory.mktemp("machines")))


def devices(slices: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in slices:
        yield from item["spec"].get("devices", ())


@pytest.mark.parametrize(
    "expression",
    [
        f"device.capacity['{DRIVER}'].memory.compareTo(quantity('40Gi')) >= 0",
        f"device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('16Gi'))",
        f"device.attributes['{DRIVER}'].productName.lowerAscii().matches('^.*h100.*$')",
        f"device.attributes['{DRIVER}'].driverVersion.compareTo(semver('560.0.0')) >= 0",
        f"device.attributes['{DRIVER}'].cudaComputeCapability.major() >= 8",
        f"device.attributes['{DRIVER}'].cudaDriverVersion.isLessThan(semver('99.0.0'))",
        f"device.attributes['{DRIVER}'].architecture == 'Hopper' && device.attributes['{DRIVER}'].brand != ''",
        "device.attributes['resource.kubernetes.io'].pciBusID.startsWith('0')",
        *(item["spec"]["selectors"][0]["cel"]["expression"] for item in device_classes()),
        f"device.attributes['{DRIVER}'].type != 'mig' || device.attributes['{DRIVER}'].profile.startsWith('1g')",
    ],
)
def test_a_selector_fails_on_no_device(slices: list[dict[str, Any]], expression: str) -> None:
    selector = compile_selector(expression)
    answers = {selector.matches(DRIVER, device) for device in devices(slices)}
    assert answers, "there are devices"


def test_a_memory_selector_chooses_by_memory(slices: list[dict[str, Any]]) -> None:
    selector = compile_selector(f"device.capacity['{DRIVER}'].memory.compareTo(quantity('60Gi')) >= 0")
    everything = list(devices(slices))
    chosen = {device["name"] for device in everything if selector.matches(DRIVER, device)}
    expected = {
        device["name"]
        for device in everything
        if parse_quantity(device["capacity"]["memory"]["value"]) >= parse_quantity("60Gi")
    }
    assert chosen == expected
    assert 0 < len([d for d in everything if selector.matches(DRIVER, d)]) < len(everything)


@pytest.mark.parametrize("name", machine_names())
def test_every_node_serves_a_pod(slices: list[dict[str, Any]], name: str) -> None:
    assert gather_pools(slices, name)[0].problem == ""
    claim = {
        "metadata": {"namespace": "default", "name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    }
    now = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)
    (allocation,) = allocate([claim], Cluster(slices, device_classes()), name, now)
    assert allocation["devices"]["results"][0]["pool"] == name
