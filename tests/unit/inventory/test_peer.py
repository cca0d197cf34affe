"""Judged by what NVIDIA's own driver published for the same machine: ours holds all of it, with equal values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceclasses import names
from kubeletplugin.nvml.simulated import machine_names
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import published

pytestmark = pytest.mark.anyio

PEER = Path(__file__).parents[2] / "data" / "peer" / "dra"

STATIC_MIG = ("0=3g.40gb:4,2g.20gb:0,1g.10gb:2,1g.10gb:3", "1=" + ",".join(["1g.10gb"] * 7), "2=")

ADDED: dict[str, str] = {
    names.ATTRIBUTE_GPU_MODULE_ID: "the peer publishes it only with its fabric manager gate; ours always",
    names.ATTRIBUTE_INDEX: "asked for by users; older releases of the peer had it",
    names.ATTRIBUTE_MINOR: "asked for by users; older releases of the peer had it",
    names.ATTRIBUTE_UNIFIED_MEMORY: "says whether memory is the system's",
    names.ATTRIBUTE_ECC_ENABLED: "asked for by users",
    names.ATTRIBUTE_NVLINK_DOMAIN: "GPUs that reach each other over NVLink, for matchAttribute",
    names.ATTRIBUTE_DRIVER_VERSION_RAW: "the driver's version as people know it, on all devices alike",
}
"""What ours has and the peer lacks, and why. Nothing else may differ."""

SYNTHETIC = {"static-mig": {"uuid": "MIG UUIDs are made up by either simulation of NVML"}}


def peer_devices(capture: str) -> dict[str, dict[str, Any]]:
    document = yaml.safe_load((PEER / capture / "resourceslices.yaml").read_text())
    slices = document.get("items", [document])
    return {device["name"]: device for item in slices for device in item["spec"]["devices"]}


@pytest.mark.parametrize(("capture", "mig"), [("default", ()), ("static-mig", STATIC_MIG)])
async def test_ours_holds_what_the_peer_published(
    capture: str, mig: tuple[str, ...], make_machine: MakeMachine
) -> None:
    inventory = await make_machine(mig=mig).inventory()
    ours = {device.name: published(device) for device in inventory.devices}
    theirs = peer_devices(capture)
    assert ours.keys() == theirs.keys()
    for name, device in theirs.items():
        for section in ("attributes", "capacity"):
            mine: Any = ours[name][section]
            differing = {key for key, value in device[section].items() if mine.get(key) != value}
            allowed = SYNTHETIC.get(capture, {}) if device["attributes"]["type"]["string"] == "mig" else {}
            assert differing <= allowed.keys(), name
            assert mine.keys() - device[section].keys() <= ADDED.keys(), name


async def test_every_listed_addition_is_really_there(make_machine: MakeMachine) -> None:
    (device, *_) = (await make_machine().inventory()).devices
    assert device.attributes.keys() - peer_devices("default")[device.name]["attributes"].keys() == ADDED.keys()


async def test_a_mig_gpu_without_partitions_is_withheld_with_what_to_do(make_machine: MakeMachine) -> None:
    inventory = await make_machine(mig=STATIC_MIG).inventory()
    (gpu,) = inventory.withheld
    assert (gpu.index, gpu.excluded) == (2, False)
    assert "no partition" in gpu.reason
    assert gpu.uuid in inventory.answered


@pytest.mark.parametrize("name", machine_names())
async def test_every_shipped_machine(name: str, make_machine: MakeMachine) -> None:
    machine = make_machine(name)
    look = await machine.look()
    devices = look.inventory.devices
    assert len(devices) == len(machine.node.profile.gpus)
    assert (look.inventory.withheld, look.inventory.notices, look.unseen, look.renewal) == ((), (), (), {})
    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        assert names.CORE_ATTRIBUTES["gpu"] <= device.attributes.keys()
        assert names.CORE_CAPACITIES["gpu"] == device.capacity.keys()
        assert device.memory_bytes > 2**33
        assert set(device.attributes) <= set(names.ATTRIBUTE_KEEP_ORDER)


async def test_unified_memory_is_the_systems_and_says_so(make_machine: MakeMachine) -> None:
    (device,) = (await make_machine("dgx-spark").inventory()).devices
    assert device.capacity[names.CAPACITY_MEMORY] == "127600748Ki"
    assert device.attributes[names.ATTRIBUTE_UNIFIED_MEMORY].value is True


@pytest.mark.parametrize(("name", "grid"), [("vgpu-guest", "NvidiaVWS"), ("v100x8", "Tesla"), ("rtx4090x2", "GeForce")])
async def test_brands(name: str, grid: str, make_machine: MakeMachine) -> None:
    (device, *_) = (await make_machine(name).inventory()).devices
    assert device.attributes[names.ATTRIBUTE_BRAND].value == grid
