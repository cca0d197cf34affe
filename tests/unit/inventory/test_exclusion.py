"""GPUs that the operator keeps for something else."""

import pytest

from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.nvml.errors import NvmlCode
from tests.unit.inventory.conftest import MakeMachine

pytestmark = pytest.mark.anyio

GPU1 = "GPU-5f8e0220-0cd4-5508-9996-1070320cd3fb"


@pytest.mark.parametrize(
    "spelling",
    [GPU1, GPU1.upper(), GPU1.removeprefix("GPU-"), f" {GPU1} ", "0000:43:00.0", "00000000:43:00.0", "43:00.0", "43:0"],
)
async def test_any_usual_spelling_excludes(spelling: str, make_machine: MakeMachine) -> None:
    inventory = await make_machine().inventory([Exclusion(spelling, "kept for the display")])
    assert len(inventory.devices) == 7
    (gpu,) = inventory.withheld
    assert (gpu.uuid, gpu.pci_bus_id, gpu.excluded) == (GPU1, "0000:43:00.0", True)
    assert gpu.reason == "excluded by the operator: kept for the display"
    assert inventory.notices == ()


@pytest.mark.parametrize(
    ("spelling", "text"),
    [
        ("GPU-00000000-0000-0000-0000-000000000000", "matches no GPU of this node"),
        ("0000:ff:00.0", "matches no GPU of this node"),
        ("MIG-5f8e0220-0cd4-5508-9996-1070320cd3fb", "names a partition"),
        ("gpu-1", "neither a GPU's UUID"),
        ("", "neither a GPU's UUID"),
    ],
)
async def test_what_matches_nothing_is_reported(spelling: str, text: str, make_machine: MakeMachine) -> None:
    inventory = await make_machine().inventory([Exclusion(spelling)])
    assert len(inventory.devices) == 8
    (notice,) = inventory.notices
    assert text in notice.text
    assert repr(spelling) in notice.text


async def test_a_sick_gpu_that_is_excluded_is_not_touched(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault(1, "memory_info", NvmlCode.UNKNOWN)
    look = await machine.look([Exclusion(GPU1)])
    assert look.inventory.withheld[0].reason == "excluded by the operator"


async def test_it_stays_excluded_when_it_does_not_say_who_it_is(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look([Exclusion(GPU1)])
    machine.node.inject_fault(1, "*", NvmlCode.GPU_IS_LOST)
    look = await prober.look([Exclusion(GPU1)])
    assert [(gpu.uuid, gpu.excluded) for gpu in look.inventory.withheld] == [(GPU1, True)]
    assert (look.inventory.lost, look.renewal) == (frozenset(), {})


async def test_a_gpu_whose_uuid_fails_is_excluded_by_address(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault(1, "uuid", NvmlCode.UNKNOWN)
    inventory = await machine.inventory([Exclusion("43:00.0")])
    assert [gpu.excluded for gpu in inventory.withheld] == [True]
