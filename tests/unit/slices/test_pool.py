"""Cutting, naming and rendering of pools."""

import pytest

from kubeletplugin.inventory.model import Attribute
from kubeletplugin.slices.pool import (
    PoolContent,
    Publisher,
    cut_pool,
    device_json,
    index_of,
    name_prefix,
    new_slice,
)
from kubeletplugin.slices.render import render_slices
from tests.unit.slices.samples import DRIVER, NODE, PUBLISHER, gpu_device, inventory_of, many, plain


@pytest.mark.parametrize(
    ("devices", "counters", "sizes"),
    [
        (0, 0, [(0, 0)]),
        (1, 0, [(1, 0)]),
        (64, 0, [(64, 0)]),
        (65, 0, [(64, 0), (1, 0)]),
        (130, 0, [(64, 0), (64, 0), (2, 0)]),
        (2, 8, [(0, 8), (2, 0)]),
        (2, 9, [(0, 8), (0, 1), (2, 0)]),
    ],
)
def test_cut(devices: int, counters: int, sizes: list[tuple[int, int]]) -> None:
    sets = tuple({"name": f"set-{index}", "counters": {"memory": {"value": "1"}}} for index in range(counters))
    pool = cut_pool(NODE, PoolContent(many(devices), sets))
    assert [(len(it.devices), len(it.shared_counters)) for it in pool.slices] == sizes
    assert tuple(device for it in pool.slices for device in it.devices) == many(devices)


def test_a_new_slice_says_nothing_empty() -> None:
    pool = cut_pool(NODE, PoolContent((plain("gpu-0"),)))
    assert new_slice(PUBLISHER, pool, 0, 7) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": "00000-gpu.nvidia.com-node-1-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 7, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        },
    }
    assert "devices" not in new_slice(PUBLISHER, cut_pool(NODE, PoolContent()), 0, 1)["spec"]
    assert "ownerReferences" not in new_slice(Publisher(DRIVER, NODE), pool, 0, 1)["metadata"]


def test_a_device_keeps_false_values_and_leaves_out_empty_maps() -> None:
    body = device_json(gpu_device(0, eccEnabled=Attribute("bool", False), minor=Attribute("int", 0)))
    assert body["name"] == "gpu-0"
    assert body["attributes"]["eccEnabled"] == {"bool": False}
    assert body["attributes"]["minor"] == {"int": 0}
    assert body["attributes"]["driverVersion"] == {"version": "580.105.8"}
    assert body["capacity"] == {"memory": {"value": "81559Mi"}}


@pytest.mark.parametrize(
    ("index", "count", "prefix"),
    [
        (0, 1, "00000-gpu.nvidia.com-node-1-"),
        (255, 300, "000ff-gpu.nvidia.com-node-1-"),
        (0, 0x100000, "00000-gpu.nvidia.com-node-1-"),
        (0, 0x100001, "000000-gpu.nvidia.com-node-1-"),
    ],
)
def test_names_sort_by_index(index: int, count: int, prefix: str) -> None:
    assert name_prefix(PUBLISHER, index, count) == prefix
    assert index_of(f"{prefix}abcde", count) == index


@pytest.mark.parametrize(
    "name",
    ["gpu-0", "00000", "0000-x", "000000-x", "0000G-x", "0000A-x", "+0000-x", "-00000-x", "peer-gpu.x"],
)
def test_other_names_have_no_index(name: str) -> None:
    assert index_of(name, 1) is None


def test_rendered_slices_have_names_for_kubectl_and_no_owner() -> None:
    rendered = render_slices(inventory_of(*(gpu_device(index) for index in range(65))), NODE).slices
    assert [item["metadata"] for item in rendered] == [
        {"name": "00000-gpu.nvidia.com-node-1"},
        {"name": "00001-gpu.nvidia.com-node-1"},
    ]
    assert [len(item["spec"]["devices"]) for item in rendered] == [64, 1]
    assert rendered[0]["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 2}


def test_a_rendered_name_is_cut_to_what_the_server_takes() -> None:
    (item,) = render_slices(inventory_of(), ".".join(["n" * 60] * 4)).slices
    assert len(item["metadata"]["name"]) <= 253
    assert item["metadata"]["name"][-1].isalnum()


def test_rendering_says_what_it_leaves_out() -> None:
    without_core = gpu_device(1, driverVersion=Attribute("version", "580.0x"))
    with_odd_key = gpu_device(2, rawVersion=Attribute("version", "1.02.3"))
    rendered = render_slices(inventory_of(gpu_device(0), without_core, with_odd_key), NODE)
    (item,) = rendered.slices
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-0", "gpu-2"]
    assert [(problem.device, problem.key) for problem in rendered.problems] == [
        ("gpu-1", "attributes.driverVersion"),
        ("gpu-1", ""),
        ("gpu-2", "attributes.rawVersion"),
    ]


def test_rendering_for_an_impossible_node() -> None:
    with pytest.raises(ValueError, match="render slices for node 'Node_1'"):
        render_slices(inventory_of(), "Node_1")
