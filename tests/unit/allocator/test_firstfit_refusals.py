"""What can't be allocated, and what is said of it."""

from typing import Any

import pytest

from allocator.firstfit import Cluster, NoFitError, explain
from allocator.requests import AllocationError
from tests.unit.allocator.worlds import (
    NODE,
    ROOT,
    alternative,
    claim,
    cluster,
    exactly,
    gpu,
    holding,
    mig,
    resource_slice,
    run,
)


@pytest.mark.parametrize(
    ("world", "wanted", "reason"),
    [
        pytest.param(
            cluster(claims=[holding("gpu-0", "gpu-1", "gpu-2")]),
            claim(exactly(count=2)),
            "claim default/mine, request gpu wants 2: 1 of 4 devices usable (3: in use by claim default/other)",
            id="held",
        ),
        pytest.param(
            cluster(claims=[holding("gpu-1")]),
            claim(exactly(allocationMode="All")),
            "wants all: 3 of 4 devices usable (1: in use",
            id="all needs every one",
        ),
        pytest.param(
            cluster(),
            claim(exactly("gpu", "gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].index == 9")),
            "0 of 4 devices usable (4: request gpu, selector 0 is false: device.attributes",
            id="selector",
        ),
        pytest.param(
            cluster(),
            claim(exactly("m", "mig.nvidia.com")),
            "(4: class mig.nvidia.com, selector 0 is false",
            id="class",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, "x"), gpu(1, "y"))),
            claim(exactly(count=2), constraints=[{"matchAttribute": ROOT}]),
            "2 of 2 devices usable but not together",
            id="constraint",
        ),
        pytest.param(
            cluster(),
            claim(exactly(), constraints=[{"matchAttribute": "gpu.nvidia.com/nothing"}]),
            "usable but not together",
            id="constraint on an attribute that no device has",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), count=3)),
            claim(exactly()),
            "is incomplete: 1 of 3 slices of generation 1",
            id="pool",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), gpu(1, taints=[{"key": "k", "effect": "NoSchedule"}]))),
            claim(exactly(allocationMode="All")),
            "(1: taint k:NoSchedule is not tolerated)",
            id="a tainted device is one of all",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, consumesCounters=[{"counterSet": "x"}]))),
            claim(exactly()),
            "shared counters",
            id="counters",
        ),
        pytest.param(
            cluster(), claim(exactly("m", "mig.nvidia.com", allocationMode="All")), "wants all: 0", id="all of none"
        ),
        pytest.param(
            cluster(resource_slice(nodeName="node-2")), claim(exactly()), "0 of 0 devices usable", id="nothing here"
        ),
        pytest.param(
            cluster(resource_slice(*(gpu(i) for i in range(33)))),
            claim(exactly(allocationMode="All")),
            "33 of 33",
            id="too many",
        ),
    ],
)
def test_no_fit(world: Cluster, wanted: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoFitError) as raised:
        run(world, wanted)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("world", "wanted", "error"),
    [
        pytest.param(
            cluster(),
            claim(exactly("g", "gpu.nvidia")),
            "no DeviceClass 'gpu.nvidia', known are gpu.nvidia.com",
            id="class",
        ),
        pytest.param(
            cluster(resource_slice({"name": "gpu-x"}, gpu(1))),
            claim(exactly()),
            "class gpu.nvidia.com, selector 0: evaluate CEL on device gpu-x: no such key: type",
            id="a CEL error is no mismatch",
        ),
        pytest.param(
            cluster(), claim(exactly("g", "gpu.nvidia.com", "?!")), "request g, selector 0: compile CEL", id="syntax"
        ),
        pytest.param(
            cluster(),
            claim({"name": "g", "deviceClassName": "x"}),
            "must have exactly or firstAvailable",
            id="old shape",
        ),
        pytest.param(cluster(), claim({"name": "g", "exactly": {}}), "deviceClassName is missing", id="no class"),
        pytest.param(cluster(), claim(exactly(allocationMode="Some")), "unknown allocationMode", id="mode"),
        pytest.param(cluster(), claim(exactly(capacity={"requests": {"memory": "1Gi"}})), "not simulated", id="shares"),
        pytest.param(
            cluster(),
            claim(exactly(), constraints=[{"distinctAttribute": ROOT}]),
            "only matchAttribute",
            id="constraint",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), count=3)),
            claim(exactly(allocationMode="All")),
            "asks for all devices, but pool node-1 of gpu.nvidia.com is incomplete",
            id="all of an incomplete pool",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, "x"), gpu(1, "y"))),
            claim(exactly(allocationMode="All"), constraints=[{"matchAttribute": ROOT}]),
            "asks for all devices, but gpu-1 doesn't satisfy a constraint",
            id="all against a constraint",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), {"name": "gpu-x"})),
            claim(
                {
                    "name": "r",
                    "firstAvailable": [
                        alternative("a", "gpu.nvidia.com"),
                        alternative("b", "gpu.nvidia.com", allocationMode="All"),
                    ],
                }
            ),
            "no such key: type",
            id="all is settled before the search",
        ),
    ],
)
def test_no_node_can_serve_it(world: Cluster, wanted: dict[str, Any], error: str) -> None:
    with pytest.raises(AllocationError) as raised:
        run(world, wanted)
    assert not isinstance(raised.value, NoFitError)
    assert error in str(raised.value)


def test_explain_says_it_per_device_and_survives_errors() -> None:
    world = cluster(resource_slice(gpu(0), gpu(1), mig("m0", "A"), {"name": "gpu-x"}), claims=[holding("gpu-1")])
    reports = {report.device: report for report in explain([claim(exactly())], world, NODE)}
    assert reports["gpu-0"].usable
    assert reports["gpu-1"].text == "in use by claim default/other"
    assert reports["m0"].text.startswith("class gpu.nvidia.com, selector 0 is false")
    assert "no such key: type" in reports["gpu-x"].text
    assert [report.usable for report in reports.values()] == [True, False, False, False]
