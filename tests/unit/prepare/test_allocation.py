"""What is read of a claim, and when two allocations are the same."""

import copy
from typing import Any

import pytest

from kubeapi.client import Json
from kubeletplugin.prepare import allocation

RESULT = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-2"}
OPAQUE = {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}


def claim() -> Json:
    return {
        "metadata": {"uid": "u", "namespace": "ns", "name": "c"},
        "spec": {"devices": {"requests": [{"name": "gpu"}]}},
        "status": {
            "allocation": {
                "allocationTimestamp": "2026-12-01T10:24:22Z",
                "devices": {
                    "results": [dict(RESULT)],
                    "config": [{"source": "FromClass", "requests": ["gpu"], "opaque": dict(OPAQUE)}],
                },
                "nodeSelector": {"nodeSelectorTerms": []},
            },
            "reservedFor": [
                {"resource": "pods", "name": "p", "uid": "pod-uid"},
                {"resource": "workloads", "apiGroup": "scheduling.k8s.io", "name": "w", "uid": "workload-uid"},
            ],
        },
    }


def read(body: Json) -> allocation.Allocation:
    found = allocation.read(body)
    assert found is not None
    return found


def test_what_is_read() -> None:
    found = read(claim())
    assert (found.uid, found.namespace, found.name) == ("u", "ns", "c")
    assert found.results == (allocation.Result("gpu", "node-1", "gpu-2", None, False),)
    assert found.pods == {"pod-uid"}
    assert found.reserved
    assert allocation.Result("want/large", "p", "d", None, False).answered_request == "want"


@pytest.mark.parametrize("status", [{}, {"allocation": None}])
def test_a_claim_that_is_not_allocated(status: Json) -> None:
    assert allocation.read(claim() | {"status": status}) is None
    assert allocation.read({"metadata": {}}) is None
    assert allocation.pods_of({"metadata": {}}) == frozenset()


def set_in(body: Json, path: str, value: Any) -> None:
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    target: Any = body["status"]["allocation"]
    for parent in parents:
        target = target[parent]
    target[last] = value


@pytest.mark.parametrize(
    ("path", "value", "same"),
    [
        ("allocationTimestamp", "2026-12-01T11:00:00Z", True),
        ("devices.results.0.tolerations", [{"key": "k"}], True),
        ("devices.results.0.bindingConditions", ["ready"], True),
        ("nodeSelector", {"nodeSelectorTerms": [{}]}, True),
        ("devices.results.0.device", "gpu-3", False),
        ("devices.results.0.pool", "node-2", False),
        ("devices.results.0.request", "other", False),
        ("devices.results.0.adminAccess", True, False),
        ("devices.results.0.shareID", "s", False),
        ("devices.results.0.consumedCapacity", {"memory": "1Gi"}, False),
        ("devices.config.0.opaque.parameters", {"kind": "MigDeviceConfig"}, False),
        ("devices.config.0.source", "FromClaim", False),
        ("devices.config.0.requests", [], False),
        ("devices.config.0.opaque.driver", "other.example.com", False),
    ],
)
def test_when_an_allocation_is_the_same(path: str, value: Any, same: bool) -> None:
    changed = copy.deepcopy(claim())
    set_in(changed, path, value)
    assert (read(changed).fingerprint == read(claim()).fingerprint) == same


def test_other_drivers_and_consumers_make_no_difference() -> None:
    changed = copy.deepcopy(claim())
    devices = changed["status"]["allocation"]["devices"]
    devices["results"].append(RESULT | {"driver": "nic.example.com"})
    devices["config"].append({"source": "FromClaim", "opaque": {"driver": "nic.example.com", "parameters": {}}})
    changed["status"]["reservedFor"] = []
    assert read(changed).fingerprint == read(claim()).fingerprint
    assert not read(changed).reserved


def test_the_order_of_results_is_part_of_the_answer() -> None:
    one, other = claim(), claim()
    for body, order in ((one, ["gpu-0", "gpu-1"]), (other, ["gpu-1", "gpu-0"])):
        body["status"]["allocation"]["devices"]["results"] = [RESULT | {"device": device} for device in order]
    assert read(one).fingerprint != read(other).fingerprint
