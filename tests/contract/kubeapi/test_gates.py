"""Fields that the fake API server drops as an older or differently configured one does."""

from typing import Any

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from kubeapi.rest import RestKubeApi
from tests.contract.kubeapi.objects import a_claim, a_device, a_slice

pytestmark = pytest.mark.anyio

_CONSUMES = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]


@pytest.mark.parametrize(
    ("gate", "fields"),
    [
        ("DRADeviceTaints", {"taints": [{"key": "a", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}]}),
        ("DRAPartitionableDevices", {"consumesCounters": _CONSUMES}),
        ("DRADeviceBindingConditions", {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}),
        ("DRAConsumableCapacity", {"allowMultipleAllocations": True}),
    ],
)
async def test_a_gate_that_is_off_drops_its_fields(
    server: FakeApiServer, api: RestKubeApi, gate: str, fields: dict[str, Any]
) -> None:
    body = a_slice("s", devices=[a_device("d", **fields)])
    server.gates[gate] = False
    assert (await api.create(RESOURCE_SLICES, body, dry_run=True))["spec"]["devices"] == [a_device("d")]
    server.gates[gate] = True
    stored = await api.create(RESOURCE_SLICES, body)
    assert stored["spec"]["devices"] == [a_device("d", **fields)]
    server.gates[gate] = False
    stored["metadata"]["labels"] = {"a": "1"}
    kept = await api.replace(RESOURCE_SLICES, "s", stored)
    assert kept["spec"]["devices"] == [a_device("d", **fields)], "what is in use stays"


async def test_shared_counters_and_policies_and_classes(server: FakeApiServer, api: RestKubeApi) -> None:
    for gate in ("DRAPartitionableDevices", "DRAConsumableCapacity", "DRAExtendedResource"):
        server.gates[gate] = False
    counters = a_slice("s")
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "s", "counters": {"c": {"value": "1"}}}]
    assert "sharedCounters" not in (await api.create(RESOURCE_SLICES, counters, dry_run=True))["spec"]
    capacity = {"memory": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}}}
    shared = a_slice("s", devices=[a_device("d", allowMultipleAllocations=True, capacity=capacity)])
    (device,) = (await api.create(RESOURCE_SLICES, shared, dry_run=True))["spec"]["devices"]
    assert device["capacity"] == {"memory": {"value": "80Gi"}}
    named = {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}
    assert (await api.create(DEVICE_CLASSES, named, dry_run=True)).get("spec", {}) == {}


async def test_devices_of_a_claims_status(server: FakeApiServer, api: RestKubeApi) -> None:
    server.put(RESOURCE_CLAIMS, a_claim("c", devices=("gpu-0",)))
    entry = {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "data": {"x": 1}}
    body = {"status": {"devices": [entry]}}

    async def apply() -> dict[str, Any]:
        answer = await api.apply(
            RESOURCE_CLAIMS, "c", body, namespace="default", field_manager="us", subresource="status"
        )
        status: dict[str, Any] = answer["status"]
        return status

    server.gates["DRAResourceClaimDeviceStatus"] = False
    dropped = await apply()
    assert "devices" not in dropped and "allocation" in dropped
    server.gates["DRAResourceClaimDeviceStatus"] = True
    assert (await apply())["devices"] == [{**entry, "conditions": None}]
    server.gates["DRAResourceClaimDeviceStatus"] = False
    assert (await apply())["devices"] == [{**entry, "conditions": None}], "what is in use stays"
