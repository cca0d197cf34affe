"""NVLink domains: what matchAttribute on them means."""

import pytest

from deviceclasses import names
from kubeletplugin.inventory import nvlink
from kubeletplugin.inventory.facts import GpuFacts, NvlinkFacts
from kubeletplugin.inventory.model import Device, Inventory
from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.simulated.state import FabricState
from tests.unit.inventory.conftest import MakeMachine

pytestmark = pytest.mark.anyio

CLUSTER = "df782a3c-1071-5191-8e53-bbd6a9aa739a"


def domain(device: Device) -> object:
    attribute = device.attributes.get(names.ATTRIBUTE_NVLINK_DOMAIN)
    return attribute.value if attribute else None


def domains(inventory: Inventory) -> list[object]:
    return [domain(device) for device in inventory.devices]


@pytest.mark.parametrize(
    ("machine", "islands"),
    [
        ("dgx-h100", 1),
        ("hgx-b200", 1),
        ("dgx-a100-40", 1),
        ("v100x8", 1),
        ("gb200-tray", 1),
        ("l40sx4", 0),
        ("t4x4", 0),
        ("gh200", 0),
    ],
)
async def test_islands_of_the_shipped_machines(machine: str, islands: int, make_machine: MakeMachine) -> None:
    found = domains(await make_machine(machine).inventory())
    assert len(set(found) - {None}) == islands
    assert (None in found) is (islands == 0)


async def test_a_multi_node_fabric_names_itself(make_machine: MakeMachine) -> None:
    for device in (await make_machine("gb200-tray").inventory()).devices:
        assert domain(device) == CLUSTER
        assert device.attributes[names.ATTRIBUTE_CLIQUE_ID].value == f"{CLUSTER}.2"


async def test_a_box_of_its_own_has_no_clique(make_machine: MakeMachine) -> None:
    for device in (await make_machine("hgx-b200").inventory()).devices:
        assert names.ATTRIBUTE_CLIQUE_ID not in device.attributes


@pytest.mark.parametrize(
    ("fabric", "told"),
    [
        (FabricState(state=1, cluster_uuid=CLUSTER), False),
        (FabricState(state=2, cluster_uuid=CLUSTER), False),
        (FabricState(state=3, status=NvmlCode.UNKNOWN, cluster_uuid=CLUSTER), True),
    ],
)
async def test_a_fabric_that_is_not_up_gives_nothing(
    fabric: FabricState, told: bool, make_machine: MakeMachine
) -> None:
    machine = make_machine("gb200-tray")
    machine.node.set_fabric(0, fabric)
    inventory = await machine.inventory()
    assert domains(inventory) == [None, CLUSTER, CLUSTER, CLUSTER]
    assert names.ATTRIBUTE_CLIQUE_ID not in inventory.devices[0].attributes
    assert bool(inventory.notices) is told
    machine.node.set_fabric(0, None)
    assert domain((await machine.inventory()).devices[0]) == CLUSTER


@pytest.mark.parametrize("machine", ["dgx-a100-40", "v100x8", "dgx-h100"])
@pytest.mark.parametrize("sick", [0, 4])
async def test_the_domain_keeps_its_name_while_a_member_cannot_be_read(
    machine: str, sick: int, make_machine: MakeMachine
) -> None:
    node = make_machine(machine)
    before = {device.uuid: domain(device) for device in (await node.inventory()).devices}
    node.node.inject_fault(sick, "minor_number", NvmlCode.UNKNOWN)
    after = {device.uuid: domain(device) for device in (await node.inventory()).devices}
    assert len(after) == 7
    assert after.items() <= before.items()


async def test_a_partition_has_no_nvlink(make_machine: MakeMachine) -> None:
    inventory = await make_machine("dgx-a100-40", mig=["0=1g.5gb"]).inventory()
    assert domains(inventory)[0] is None
    assert None not in domains(inventory)[1:]


def gpu(uuid: str, address: str, *ends: str) -> GpuFacts:
    return GpuFacts(
        index=0,
        uuid=uuid,
        pci_bus_id=address,
        minor=0,
        product_name="",
        brand="",
        architecture="",
        cuda_compute_capability=(8, 0),
        memory_bytes=1,
        nvlink=NvlinkFacts(remote_ends=frozenset(ends)),
    )


def test_bridged_pairs_are_domains_of_their_own() -> None:
    found = nvlink.domains(
        [
            gpu("a", "0:1", "0:2"),
            gpu("c", "0:3", "0:4"),
            gpu("b", "0:2", "0:1"),
            gpu("d", "0:4", "0:3"),
            gpu("e", "0:5"),
        ],
        "node-a",
    )
    assert found["a"] == found["b"] != found["c"] == found["d"]
    assert "e" not in found


def test_a_chain_is_one_domain_in_whatever_order_it_is_read() -> None:
    chain = [gpu("a", "0:1", "0:2"), gpu("c", "0:3", "0:4"), gpu("b", "0:2", "0:1", "0:3"), gpu("d", "0:4", "0:3")]
    assert len(set(nvlink.domains(chain, "n").values())) == 1
    assert nvlink.domains(chain, "n") == nvlink.domains(chain[::-1], "n")


def test_equal_boxes_of_two_nodes_are_two_domains() -> None:
    pair = [gpu("a", "0:1", "0:2"), gpu("b", "0:2", "0:1")]
    assert nvlink.domains(pair, "node-a") != nvlink.domains(pair, "node-b")


async def test_a_failing_link_costs_no_device(make_machine: MakeMachine) -> None:
    machine = make_machine("dgx-a100-40")
    machine.node.inject_fault(0, "nvlink_state", NvmlCode.UNKNOWN)
    inventory = await machine.inventory()
    assert domains(inventory)[0] is None
    assert len(inventory.devices) == 8
    assert "NVLink 0" in inventory.notices[0].text
