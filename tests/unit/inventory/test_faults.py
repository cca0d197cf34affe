"""One GPU answers badly: its neighbours don't notice, and nothing crashes."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

import pytest

from deviceclasses import names
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.probe import InventoryProber
from kubeletplugin.inventory.simulated import simulated_surroundings
from kubeletplugin.nvml.api import Memory
from kubeletplugin.nvml.errors import UNSUPPORTED, NvmlCode, NvmlError
from kubeletplugin.nvml.worker import NvmlWorkers
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import Machine

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

pytestmark = pytest.mark.anyio

SICK = 3
MIG = ("3=3g.40gb,1g.10gb", "0=7g.80gb")
CODES = (*(code for code in NvmlCode if code is not NvmlCode.SUCCESS), 12345)

NEEDED = frozenset({"device_by_index", "uuid", "pci_info", "memory_info", "minor_number", "name"}) | {
    "cuda_compute_capability"
}
"""Without the answer there is no device."""

VOCABULARY = frozenset({"brand", "architecture"})
"""Unsupported means "Unknown"."""

OPTIONAL = {
    "ecc_mode": names.ATTRIBUTE_ECC_ENABLED,
    "addressing_mode": names.ATTRIBUTE_ADDRESSING_MODE,
    "module_id": names.ATTRIBUTE_GPU_MODULE_ID,
    "fabric_info": names.ATTRIBUTE_NVLINK_DOMAIN,
}
GPU_OR_SESSION = frozenset(
    {
        NvmlCode.GPU_IS_LOST,
        NvmlCode.GPU_NOT_FOUND,
        NvmlCode.UNINITIALIZED,
        NvmlCode.DRIVER_NOT_LOADED,
        NvmlCode.LIB_RM_VERSION_MISMATCH,
        NvmlCode.LIBRARY_NOT_FOUND,
    }
)


async def look_with(machine: Machine, call: str, code: int) -> Inventory:
    machine.node.inject_fault(SICK, call, code)
    try:
        return await machine.inventory()
    finally:
        machine.node.clear_faults()


def others(inventory: Inventory, sick: str) -> list[object]:
    return [device for device in inventory.devices if device.gpu_uuid != sick]


@pytest.mark.parametrize("mig", [(), MIG], ids=["whole", "mig"])
@pytest.mark.parametrize(
    "call",
    [
        *sorted(NEEDED | VOCABULARY | OPTIONAL.keys()),
        "mig_mode",
        "gpu_instance_profile",
        "gpu_instances",
        "compute_instance_profile",
        "compute_instances",
    ],
)
async def test_any_code_from_any_getter_concerns_its_gpu_only(
    call: str, mig: tuple[str, ...], make_machine: MakeMachine
) -> None:
    machine = make_machine(mig=mig)
    sick = machine.uuid(SICK)
    healthy = others(await machine.inventory(), sick)
    for code in CODES:
        inventory = await look_with(machine, call, code)
        assert others(inventory, sick) == healthy, code
        for device in inventory.devices:
            assert names.CORE_ATTRIBUTES[device.kind] <= device.attributes.keys(), code
            assert names.CORE_CAPACITIES[device.kind] <= device.capacity.keys(), code
        assert inventory.lost <= {sick}


@pytest.mark.parametrize("call", sorted(NEEDED))
async def test_a_needed_value_withholds_the_gpu_with_the_reason(call: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    for code in CODES:
        inventory = await look_with(machine, call, code)
        (gpu,) = inventory.withheld
        assert gpu.index == SICK
        assert str(NvmlError(code, "x")).partition(": ")[2] in gpu.reason
        assert len(inventory.devices) == 7
        assert machine.uuid(SICK) not in inventory.answered


@pytest.mark.parametrize(("call", "key"), sorted(OPTIONAL.items()))
async def test_an_optional_value_costs_only_itself(call: str, key: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    (whole,) = [device for device in (await machine.inventory()).devices if device.index == SICK]
    for code in set(CODES) - GPU_OR_SESSION:
        inventory = await look_with(machine, call, code)
        (device,) = [device for device in inventory.devices if device.index == SICK]
        if call == "fabric_info" and code in UNSUPPORTED:
            continue  # then the links tell
        assert device == replace(whole, attributes={k: v for k, v in whole.attributes.items() if k != key})
        told = [notice.text for notice in inventory.notices if notice.uuid == whole.uuid]
        assert bool(told) is (code not in UNSUPPORTED)


@pytest.mark.parametrize("call", sorted(VOCABULARY))
async def test_an_unsupported_name_is_unknown(call: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    inventory = await look_with(machine, call, NvmlCode.NOT_SUPPORTED)
    assert inventory.devices[SICK].attributes[call].value == "Unknown"


async def test_without_the_mig_mode_a_gpu_is_not_offered_whole(make_machine: MakeMachine) -> None:
    inventory = await look_with(make_machine(), "mig_mode", NvmlCode.UNKNOWN)
    assert [gpu.index for gpu in inventory.withheld] == [SICK]


async def test_an_h100_without_memory_is_a_fault_and_never_gets_the_systems(make_machine: MakeMachine) -> None:
    inventory = await look_with(make_machine(), "memory_info", NvmlCode.NOT_SUPPORTED)
    assert [gpu.index for gpu in inventory.withheld] == [SICK]


async def test_no_memory_is_a_fault_unless_the_part_is_known_to_share_the_systems(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, withheld in (("dgx-h100", 8), ("dgx-spark", 0)):
        machine = make_machine(name)
        monkeypatch.setattr(type(machine.nvml), "memory_info", lambda self, device: Memory(0, 0, 0))
        inventory = await machine.inventory()
        assert len(inventory.withheld) == withheld, name
        assert all("no memory" in gpu.reason for gpu in inventory.withheld)
        assert all(device.memory_bytes > 0 for device in inventory.devices)


async def test_a_lost_gpu_is_lost(make_machine: MakeMachine) -> None:
    machine = make_machine()
    await machine.inventory()
    prober = machine.prober()
    await prober.look()
    machine.node.lose_gpu(SICK)
    look = await prober.look()
    assert look.inventory.lost == {machine.uuid(SICK)}
    assert "fell off the bus" in look.inventory.withheld[0].reason
    ((key, text),) = look.renewal.items()
    assert key == f"{machine.uuid(SICK)} {NvmlCode.GPU_IS_LOST:d}"
    assert f"GPU {SICK}" in text


@pytest.mark.parametrize("code", [NvmlCode.RESET_REQUIRED, NvmlCode.UNKNOWN])
async def test_a_trouble_keeps_its_text_whichever_call_meets_it(make_machine: MakeMachine, code: int) -> None:
    """A new text is a new Event."""
    machine = make_machine()
    prober = machine.prober()
    reasons = []
    for call in ("memory_info", "minor_number", "memory_info"):
        machine.node.inject_fault(SICK, call, code)
        (withheld,) = (await prober.look()).inventory.withheld
        reasons.append(withheld.reason)
        machine.node.clear_faults()
    assert len(set(reasons)) == 1, reasons
    machine.node.inject_fault(SICK, "memory_info", NvmlCode.GPU_IS_LOST)
    assert (await prober.look()).inventory.withheld[0].reason != reasons[0]
    machine.node.clear_faults()
    assert (await prober.look()).inventory.withheld == ()


class ImpatientWith:
    """Real workers that wait 50 ms for one GPU and long for the others."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.workers = NvmlWorkers()

    async def call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts, timeout: float | None = None) -> T:
        return await self.workers.call(key, fn, *args, timeout=0.05 if key == self.key else 30.0)

    @property
    def busy(self) -> bool:
        return self.workers.busy


async def test_a_gpu_that_hangs_costs_only_itself(make_machine: MakeMachine) -> None:
    machine = make_machine()
    sick = machine.uuid(SICK)
    impatient = ImpatientWith(sick)
    prober = InventoryProber(machine.nvml, impatient, simulated_surroundings(machine.node.profile, machine.tree))
    machine.node.hang(SICK, "memory_info")
    try:
        for _ in range(2):
            inventory = (await prober.look()).inventory
            assert [(gpu.index, gpu.uuid) for gpu in inventory.withheld] == [(SICK, sick)]
            assert inventory.withheld[0].reason.startswith("NVML ")
            assert "read_gpu" not in inventory.withheld[0].reason
            assert len(inventory.answered) == len(inventory.devices) == 7
    finally:
        machine.node.clear_faults()
    while (await prober.look()).inventory.withheld:
        pass  # until the hung call has come back
    impatient.workers.close()


async def test_a_gpu_that_does_not_even_say_its_name_is_known_by_its_index(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look()
    machine.workers.hung.add(f"index {SICK}")
    inventory = (await prober.look()).inventory
    assert [(gpu.index, gpu.uuid) for gpu in inventory.withheld] == [(SICK, machine.uuid(SICK))]
    assert prober.gpu_of(f"index {SICK}") == machine.uuid(SICK), "as a metric calls it"
    assert prober.gpu_of("index 99") == "index 99"


async def test_unless_another_index_has_that_name_now(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look()
    machine.node.set_order([3, 0, 1, 2, 4, 5, 6, 7])
    machine.workers.hung.add(f"index {SICK}")
    inventory = (await prober.look()).inventory
    assert [gpu.uuid for gpu in inventory.withheld] == [""]
    assert machine.uuid(3) in inventory.answered


async def test_a_gpu_without_a_name_is_known_by_its_address_and_not_by_anothers_index(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look()
    machine.node.remove_gpu(2)
    machine.node.inject_fault(3, "uuid", NvmlCode.GPU_IS_LOST)
    look = await prober.look()
    assert [(gpu.index, gpu.uuid) for gpu in look.inventory.withheld] == [(2, machine.uuid(3))]
    assert look.inventory.lost == {machine.uuid(3)}
    again = (await prober.look()).inventory
    assert [gpu.uuid for gpu in again.withheld] == [machine.uuid(3)]


async def test_an_index_means_nothing_once_the_others_have_moved(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look()
    machine.node.remove_gpu(2)
    machine.workers.hung.add("index 2")
    inventory = (await prober.look()).inventory
    assert [(gpu.index, gpu.uuid) for gpu in inventory.withheld] == [(2, "")]


async def test_no_two_gpus_are_taken_for_the_same(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    await prober.look()
    machine.node.set_order([0, 1, 2, 4, 3, 5, 6, 7])
    machine.node.inject_fault(4, "uuid", NvmlCode.UNKNOWN)
    machine.workers.hung.add("index 4")
    inventory = (await prober.look()).inventory
    assert [(gpu.index, gpu.uuid) for gpu in inventory.withheld] == [(3, machine.uuid(4)), (4, "")]


async def test_an_excluded_gpu_without_a_name_stays_excluded_where_it_is(make_machine: MakeMachine) -> None:
    machine = make_machine()
    prober = machine.prober()
    rules = [Exclusion(machine.uuid(3), "display")]
    await prober.look(rules)
    machine.workers.hung.add("index 3")
    inventory = (await prober.look(rules)).inventory
    assert [(gpu.uuid, gpu.excluded) for gpu in inventory.withheld] == [(machine.uuid(3), True)]
    machine.node.set_order([3, 0, 1, 2, 4, 5, 6, 7])
    inventory = (await prober.look(rules)).inventory
    assert [(gpu.index, gpu.uuid, gpu.excluded) for gpu in inventory.withheld] == [
        (0, machine.uuid(3), True),
        (3, "", False),
    ]


@pytest.mark.parametrize("twin", ["minor", "uuid"])
async def test_gpus_that_claim_the_same_identity_are_both_withheld(twin: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    if twin == "minor":
        machine.node.set_minor(1, 0)
    else:
        machine.node.replace_gpu(1, machine.uuid(0))
    inventory = await machine.inventory()
    assert [gpu.index for gpu in inventory.withheld] == [0, 1]
    assert all("another GPU reports the same" in gpu.reason for gpu in inventory.withheld)
    assert len(inventory.devices) == 6


async def test_an_unexpected_error_withholds_the_gpu(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine()
    plain = machine.nvml.memory_info

    def broken(device: object) -> Memory:
        if getattr(device, "slot", None) == SICK:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return plain(device)  # type: ignore[arg-type]

    monkeypatch.setattr(type(machine.nvml), "memory_info", lambda self, device: broken(device))
    inventory = await machine.inventory()
    assert [gpu.index for gpu in inventory.withheld] == [SICK]
    assert "UnicodeDecodeError" in inventory.withheld[0].reason


@pytest.mark.parametrize("version", ["N/A", "", "garbage 1.2"])
async def test_a_driver_version_that_is_none_costs_no_gpu(version: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.nvml.shutdown()
    machine.node.set_driver(version=version)
    machine.nvml.init()
    inventory = await machine.inventory()
    assert {device.attributes[names.ATTRIBUTE_DRIVER_VERSION].value for device in inventory.devices} == {"0.0.0"}
    assert {device.attributes[names.ATTRIBUTE_DRIVER_VERSION_RAW].value for device in inventory.devices} == {version}
    assert "isn't a version" in inventory.notices[0].text


async def test_a_missing_libcuda_costs_no_gpu(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault("system", "cuda_driver_version", NvmlCode.LIBRARY_NOT_FOUND)
    inventory = await machine.inventory()
    assert len(inventory.devices) == 8
    assert "CUDA driver version" in inventory.notices[0].text


@pytest.mark.parametrize("call", ["driver_version", "device_count"])
async def test_a_driver_that_does_not_answer_for_the_node_fails_the_look(call: str, make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault("system", call, NvmlCode.UNKNOWN)
    with pytest.raises(NvmlError):
        await machine.look()


async def test_a_gpu_on_the_bus_that_nvml_does_not_list_is_reported(make_machine: MakeMachine) -> None:
    machine = make_machine()
    folder = machine.tree / "sys/bus/pci/devices/0000:e5:00.0"
    folder.mkdir()
    (folder / "vendor").write_text("0x10de\n")
    (folder / "class").write_text("0x030200\n")
    look = await machine.look()
    assert look.unseen == ("0000:e5:00.0",)
    assert "0000:e5:00.0" in look.inventory.notices[0].text
    (folder / "driver").symlink_to("../../drivers/vfio-pci")
    assert (await machine.look()).unseen == ()
