"""Static MIG partitions: what is offered, under which profile name, within the API's limit of keys."""

import pytest

from deviceclasses import names
from kubeletplugin.inventory import attributes, mig
from kubeletplugin.inventory.model import Attribute, Device, DeviceKind
from kubeletplugin.nvml.api import GpuInstanceProfile
from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.simulated import load_profile, machine_names
from kubeletplugin.nvml.simulated.state import NodeState
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import Machine

pytestmark = pytest.mark.anyio

ALWAYS = names.CORE_ATTRIBUTES["mig"]


def test_names_by_arithmetic_are_nvmls_own_on_every_part() -> None:
    for machine in machine_names():
        for model in load_profile(machine).models.values():
            for entry in model.mig.gpu_instance_profiles or ():
                shown = entry.profile
                profile = GpuInstanceProfile(
                    id=shown.id,
                    name=f"MIG {shown.name}",
                    slice_count=shown.slices,
                    instance_count=shown.max,
                    memory_mib=shown.memory_mib or 0,
                    multiprocessors=0,
                    copy_engines=0,
                    decoders=0,
                    encoders=0,
                    jpeg_engines=0,
                    ofa_engines=0,
                )
                named = mig.profile_name(shown.enum, profile, model.memory.total_bytes or 0)
                assert named == shown.name, machine


@pytest.mark.parametrize(
    ("name", "expected"), [("MIG 2g.0gb+gfx", "2g.0gb+gfx"), ("", "2g.0gb+gfx"), ("?", "2g.0gb+gfx")]
)
def test_without_memory_the_name_is_nvmls(name: str, expected: str) -> None:
    profile = GpuInstanceProfile(204, name, 2, 1, 0, 0, 0, 0, 0, 0, 0)
    assert mig.profile_name(0xB, profile, 0) == expected


async def test_the_double_memory_slice_is_offered_though_its_compute_profile_is_number_7(
    make_machine: MakeMachine,
) -> None:
    (device, *_) = (await make_machine(mig=["0=1g.20gb:2"]).inventory()).devices
    assert device.name == "gpu-0-mig-1g20gb-15-2"
    assert device.mig is not None
    assert (device.mig.placement_start, device.mig.placement_size) == (2, 2)
    assert [key for key in device.capacity if key.startswith("memorySlice")] == ["memorySlice2", "memorySlice3"]


def empty_3g(machine: Machine) -> None:
    """Takes the compute instance out of GPU 0's 3g partition, as `nvidia-smi mig -dci` does."""

    def change(state: NodeState) -> None:
        next(instance for instance in state.gpus[0].gpu_instances if instance.size == 4).compute_instances.clear()

    machine.node.store.update(change)


async def test_a_gpu_instance_without_its_full_compute_instance_is_told_and_not_offered(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(mig=["0=3g.40gb:4,1g.10gb:0"])
    empty_3g(machine)
    inventory = await machine.inventory()
    assert [device.name for device in inventory.devices if device.mig] == ["gpu-0-mig-1g10gb-19-0"]
    (notice,) = inventory.notices
    assert notice.uuid == machine.uuid(0)
    assert "3g.40gb" in notice.text


async def test_a_partly_cut_gpu_instance_is_not_offered(make_machine: MakeMachine) -> None:
    machine = make_machine(mig=["0=3g.40gb"])
    empty_3g(machine)
    nvml = machine.nvml
    gpu = nvml.device_by_index(0)
    (instance,) = nvml.gpu_instances(gpu, 9)
    nvml.create_compute_instance(instance.handle, 0)
    inventory = await machine.inventory()
    assert [device for device in inventory.devices if device.mig] == []
    assert [(gpu.index, "no partition" in gpu.reason) for gpu in inventory.withheld] == [(0, True)]


@pytest.mark.parametrize("name", [name for name in machine_names() if load_profile(name).model_of(0).mig.capable])
async def test_every_profile_of_every_part_makes_a_device(name: str, make_machine: MakeMachine) -> None:
    machine = make_machine(name)
    for entry in machine.node.profile.model_of(0).mig.gpu_instance_profiles or ():
        machine.node.set_mig_layout(f"0={entry.profile.name}")
        inventory = await machine.inventory()
        (device,) = [device for device in inventory.devices if device.mig]
        assert (inventory.withheld, inventory.notices) == ((), ())
        assert device.attributes["profile"].value == entry.profile.name
        assert ALWAYS <= device.attributes.keys()
        assert names.CORE_CAPACITIES["mig"] <= device.capacity.keys()
        assert len(device.attributes) + len(device.capacity) <= names.MAX_KEYS
        assert device.memory_bytes > 0


async def test_partitions_come_in_order_of_placement(make_machine: MakeMachine) -> None:
    inventory = await make_machine(mig=["1=2g.20gb:4,1g.10gb:1,1g.10gb:0,2g.20gb:2"]).inventory()
    placed = [device.mig.placement_start for device in inventory.devices if device.mig]
    assert placed == [0, 1, 2, 4]
    assert [device.index for device in inventory.devices] == [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7]


async def test_a_pending_change_of_the_mig_mode_is_told(make_machine: MakeMachine) -> None:
    machine = make_machine("dgx-a100-40")
    machine.node.store.update(lambda state: setattr(state.gpus[0], "mig_pending", True))
    inventory = await machine.inventory()
    assert inventory.devices[0].kind is DeviceKind.GPU
    assert "MIG mode changes to on" in inventory.notices[0].text


async def test_a_partition_of_unified_memory_has_the_systems(make_machine: MakeMachine) -> None:
    (device,) = (await make_machine("jetson-thor", mig=["0=2g.0gb"]).inventory()).devices
    assert device.capacity["memory"] == "125Gi"
    assert device.attributes["unifiedMemory"].value is True
    assert device.attributes["profile"].value == "2g.0gb"


@pytest.mark.parametrize(
    ("name", "layout", "gone"),
    [
        ("dgx-h100", ["0=3g.40gb,3g.40gb"], set()),
        ("dgx-h100", ["0=7g.80gb", "1=1g.10gb"], {"unifiedMemory", "eccEnabled", "driverVersionRaw"}),
        (
            "rtx-pro-6000x8",
            ["0=4g.96gb", "1=1g.24gb"],
            {"addressingMode", "gpuModuleID", "index", "minor", "unifiedMemory", "eccEnabled", "driverVersionRaw"},
        ),
    ],
)
async def test_the_same_keys_give_way_on_all_partitions_of_a_node(
    name: str, layout: list[str], gone: set[str], make_machine: MakeMachine
) -> None:
    inventory = await make_machine(name, mig=layout).inventory()
    whole = next(device for device in inventory.devices if device.mig is None)
    for device in inventory.devices:
        assert len(device.attributes) + len(device.capacity) <= names.MAX_KEYS
        if device.mig:
            full = whole.attributes.keys() - {"nvlinkDomain", "cliqueID"} | {"profile", "parentUUID"}
            assert full - device.attributes.keys() == gone & full
            assert names.CORE_CAPACITIES["mig"] <= device.capacity.keys()


async def test_a_whole_gpu_keeps_all_its_keys_beside_large_partitions(make_machine: MakeMachine) -> None:
    plain = (await make_machine("dgx-a100-80").inventory()).devices[7]
    machine = make_machine("dgx-a100-80")
    machine.node.set_mig_layout("0=7g.80gb")
    assert (await machine.inventory()).devices[7].attributes == plain.attributes


def test_core_keys_never_give_way() -> None:
    keys = {key: Attribute("string", "x") for key in names.ATTRIBUTE_KEEP_ORDER}
    slices = {names.CAPACITY_MEMORY_SLICE.format(number): "1" for number in range(14)}
    capacity = dict.fromkeys(names.CORE_CAPACITIES["mig"], "1") | slices
    device = Device("m", DeviceKind.MIG, "MIG-1", "GPU-1", 0, 0, "0000:01:00.0", keys, capacity)
    (fitted,) = attributes.within_limit([device])
    assert fitted.attributes.keys() == ALWAYS
    assert len(fitted.capacity) == 21


def test_what_gives_way_first_is_at_the_end_of_the_order() -> None:
    core = set(ALWAYS | names.CORE_ATTRIBUTES["gpu"])
    order = list(names.ATTRIBUTE_KEEP_ORDER)
    assert core == set(order[: len(core)])
    assert order[-1] == names.ATTRIBUTE_DRIVER_VERSION_RAW
    assert len(set(order)) == len(order)


async def test_a_layout_that_changes_while_it_is_read_withholds_the_gpu_for_this_look(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(mig=["0=3g.40gb"])
    machine.node.inject_fault(0, "gpu_instances", NvmlCode.NOT_FOUND, times=1)
    prober = machine.prober()
    assert [gpu.index for gpu in (await prober.look()).inventory.withheld] == [0]
    assert (await prober.look()).inventory.withheld == ()
