"""The stand-in for the scheduler: tables of slices, claims and classes to the allocation that the real one wrote."""

from typing import Any

import pytest

from allocator.firstfit import Cluster, allocate
from deviceclasses.catalogue import device_classes
from tests.unit.allocator.worlds import (
    NODE,
    NOW,
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


def test_the_object_is_what_the_real_scheduler_wrote() -> None:
    devices = [gpu(i) for i in (2, 3, 4, 6, 7, 0, 1, 5)]
    two_requests = claim(exactly("a"), exactly("b", count=2), name="two-requests")
    (allocation,) = allocate([two_requests], cluster(resource_slice(*devices), claims=[holding("gpu-2")]), NODE, NOW)
    assert allocation == {
        "allocationTimestamp": "2026-12-01T10:24:22Z",
        "devices": {
            "results": [
                {"request": "a", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-3"},
                {"request": "b", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-4"},
                {"request": "b", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-6"},
            ]
        },
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
        },
    }


MEMORY = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('60Gi')) >= 0"


@pytest.mark.parametrize(
    ("world", "claims", "expected"),
    [
        pytest.param(cluster(), [claim(exactly())], ["gpu=gpu-0"], id="first fit"),
        pytest.param(cluster(), [claim(exactly(count=2))], ["gpu=gpu-0", "gpu=gpu-1"], id="two"),
        pytest.param(
            cluster(claims=[holding("gpu-0", "gpu-2")]),
            [claim(exactly(count=2))],
            ["gpu=gpu-1", "gpu=gpu-3"],
            id="held",
        ),
        pytest.param(
            cluster(claims=[holding("gpu-0", admin=True)]),
            [claim(exactly())],
            ["gpu=gpu-0"],
            id="admin access holds nothing",
        ),
        pytest.param(
            cluster(claims=[holding("gpu-0")]),
            [claim(exactly("all", adminAccess=True, allocationMode="All"))],
            [f"all=gpu-{i}" for i in range(4)],
            id="admin access takes held devices",
        ),
        pytest.param(
            cluster(),
            [claim(exactly("watch", adminAccess=True), exactly("use"))],
            ["watch=gpu-0", "use=gpu-1"],
            id="a device picked for admin access serves no other request of the pod",
        ),
        pytest.param(
            cluster(), [claim(exactly()), claim(exactly(), name="b")], ["gpu=gpu-0", "gpu=gpu-1"], id="two claims"
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, memory="40Gi"), gpu(1))),
            [claim(exactly("gpu", "gpu.nvidia.com", MEMORY))],
            ["gpu=gpu-1"],
            id="memory",
        ),
        pytest.param(
            cluster(resource_slice(mig("mig-0", "GPU-a"), gpu(1))),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="class picks the type",
        ),
        pytest.param(
            cluster(resource_slice(gpu(9), name="00001-b", count=2), resource_slice(gpu(8), name="00000-z", count=2)),
            [claim(exactly(count=2))],
            ["gpu=gpu-8", "gpu=gpu-9"],
            id="slices by name",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), generation=1), resource_slice(gpu(7), generation=2)),
            [claim(exactly())],
            ["gpu=gpu-7"],
            id="highest generation only",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), pool="a", count=2), resource_slice(gpu(1), pool="b")),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="incomplete pool passed over",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), gpu(0), pool="a"), resource_slice(gpu(1), pool="b")),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="invalid pool passed over",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), pool="n2", nodeName="node-2"), resource_slice(gpu(1))),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="other nodes' devices",
        ),
        pytest.param(
            cluster(resource_slice({"name": "nic"}, driver="nic.example.com", pool="a"), resource_slice(gpu(1))),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="another driver's device without attributes harms nobody",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, "x"), gpu(1, "y"), gpu(2, "x"))),
            [claim(exactly("a"), exactly("b"), constraints=[{"matchAttribute": ROOT}])],
            ["a=gpu-0", "b=gpu-2"],
            id="matchAttribute across requests",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, "x"), gpu(1, "y"), gpu(2, "y"))),
            [claim(exactly(count=2), constraints=[{"matchAttribute": ROOT}])],
            ["gpu=gpu-1", "gpu=gpu-2"],
            id="matchAttribute backtracks",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, "x"), gpu(1, "y"))),
            [claim(exactly("a"), exactly("b"), constraints=[{"matchAttribute": ROOT, "requests": ["a"]}])],
            ["a=gpu-0", "b=gpu-1"],
            id="a constraint for some requests",
        ),
        pytest.param(
            cluster(resource_slice(mig("m0", "A"), mig("m1", "B"), mig("m2", "B"))),
            [
                claim(
                    exactly("m", "mig.nvidia.com", count=2),
                    constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}],
                )
            ],
            ["m=m1", "m=m2"],
            id="an attribute of the driver's own domain",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), mig("m0", "A"))),
            [
                claim(
                    {
                        "name": "r",
                        "firstAvailable": [
                            alternative("big", "gpu.nvidia.com", count=2),
                            alternative("part", "mig.nvidia.com"),
                        ],
                    }
                )
            ],
            ["r/part=m0"],
            id="prioritized list",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0), gpu(1))),
            [
                claim(
                    {
                        "name": "r",
                        "firstAvailable": [
                            alternative("two", "gpu.nvidia.com", count=2),
                            alternative("one", "gpu.nvidia.com"),
                        ],
                    },
                    exactly("g"),
                )
            ],
            ["r/one=gpu-0", "g=gpu-1"],
            id="a later request pushes a prioritized list on",
        ),
        pytest.param(
            cluster(
                resource_slice(
                    gpu(0, taints=[{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]), gpu(1)
                )
            ),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="taint",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]), gpu(1))),
            [claim(exactly(tolerations=[{"key": "k", "operator": "Exists"}]))],
            ["gpu=gpu-0"],
            id="toleration",
        ),
        pytest.param(
            cluster(resource_slice(gpu(0, taints=[{"key": "k", "effect": "None"}]))),
            [claim(exactly())],
            ["gpu=gpu-0"],
            id="taint None",
        ),
        pytest.param(
            cluster(
                resource_slice(gpu(0), pool="p", count=2),
                resource_slice(gpu(9), pool="p", count=2, name="00001-b", nodeName="node-2"),
            ),
            [claim(exactly())],
            ["gpu=gpu-0"],
            id="a pool of several nodes is whole with the other node's slices",
        ),
        pytest.param(
            cluster(
                resource_slice(gpu(0), pool="p", count=2),
                resource_slice(gpu(9), pool="p", generation=2, nodeName="node-2"),
                resource_slice(gpu(1)),
            ),
            [claim(exactly(allocationMode="All"))],
            ["gpu=gpu-1"],
            id="a pool that moved on without this node is none",
        ),
        pytest.param(
            cluster(resource_slice({"name": "gpu-x"}, gpu(1)), claims=[holding("gpu-x")]),
            [claim(exactly())],
            ["gpu=gpu-1"],
            id="a held device isn't evaluated, so that it can't fail",
        ),
    ],
)
def test_allocated(world: Cluster, claims: list[dict[str, Any]], expected: list[str]) -> None:
    assert run(world, *claims) == expected


def test_configs_of_classes_and_claims() -> None:
    opaque = {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}
    classes = device_classes()
    classes[0]["spec"]["config"] = [{"opaque": opaque}]
    world = Cluster([resource_slice(gpu(0), gpu(1), mig("m0", "A"))], classes)
    wanted = claim(
        exactly("a"),
        {
            "name": "b",
            "firstAvailable": [alternative("big", "gpu.nvidia.com", count=4), alternative("small", "gpu.nvidia.com")],
        },
        exactly("m", "mig.nvidia.com"),
        config=[
            {"opaque": opaque},
            {"opaque": opaque, "requests": ["b/big"]},
            {"opaque": opaque, "requests": ["b/small"]},
            {"opaque": opaque, "requests": ["b"]},
        ],
    )
    (allocation,) = allocate([wanted], world, NODE, NOW)
    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["a", "b/small"], "opaque": opaque},
        {"source": "FromClaim", "opaque": opaque},
        {"source": "FromClaim", "requests": ["b/small"], "opaque": opaque},
        {"source": "FromClaim", "requests": ["b"], "opaque": opaque},
    ]


def test_devices_for_all_nodes_need_no_node_selector() -> None:
    world = cluster(resource_slice(gpu(0), allNodes=True))
    (allocation,) = allocate([claim(exactly())], world, NODE, NOW)
    assert "nodeSelector" not in allocation


def test_admin_access_and_tolerations_are_in_the_result() -> None:
    toleration = {"key": "k", "operator": "Exists"}
    (allocation,) = allocate([claim(exactly(adminAccess=True, tolerations=[toleration]))], cluster(), NODE, NOW)
    (result,) = allocation["devices"]["results"]
    assert result["adminAccess"] is True
    assert result["tolerations"] == [toleration]
