"""MIG: placements, ids, capacity and the real error codes."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.nvml.api import DeviceHandle, GpuInstance, Placement
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, mig
from kubeletplugin.nvml.simulated.profile import load_profile
from kubeletplugin.nvml.simulated.schema import InstanceProfile, MigSpec
from kubeletplugin.nvml.simulated.state import GpuState, ProcessState, first_state

from .conftest import NodeFactory

ONE, ONE_ME, TWO, THREE, FOUR, SEVEN = 19, 20, 14, 9, 5, 0


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(NvmlError) as raised:
        call()
    return raised.value.code


@pytest.fixture
def gpu(nvml: SimulatedNvml) -> DeviceHandle:
    gpu = nvml.device_by_index(0)
    assert nvml.set_mig_mode(gpu, 1) == NvmlCode.SUCCESS
    return gpu


def full(nvml: SimulatedNvml, instance: GpuInstance) -> int:
    """The id of the compute instance profile that fills ``instance``."""
    for enum in range(9):
        try:
            profile = nvml.compute_instance_profile(instance.handle, enum)
        except NvmlError:
            continue
        if profile.slice_count == {ONE: 1, TWO: 2, THREE: 3}[instance.profile_id]:
            return profile.id
    raise AssertionError("no full profile")


def test_profiles_have_ids_that_are_not_their_enum(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    assert [nvml.gpu_instance_profile(gpu, enum).id for enum in (0, 7, 9, 1, 2, 3, 4)] == [19, 20, 15, 14, 9, 5, 0]
    profile = nvml.gpu_instance_profile(gpu, 2)
    assert (profile.name, profile.slice_count, profile.memory_mib) == ("MIG 3g.40gb", 3, 40448)
    assert code_of(lambda: nvml.gpu_instance_profile(gpu, 5)) == NvmlCode.NOT_SUPPORTED
    assert code_of(lambda: nvml.gpu_instance_profile(gpu, 0x12)) == NvmlCode.INVALID_ARGUMENT


def test_the_driver_fills_from_its_own_end(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    starts = [nvml.create_gpu_instance(gpu, ONE).placement.start for _ in range(7)]
    assert starts == [6, 4, 5, 0, 1, 2, 3]
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE)) == NvmlCode.INSUFFICIENT_RESOURCES
    assert sorted(instance.id for instance in nvml.gpu_instances(gpu, ONE)) == [7, 8, 9, 10, 11, 12, 13]


def test_memory_slices_limit_what_compute_slices_would_allow(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    nvml.create_gpu_instance(gpu, THREE)
    nvml.create_gpu_instance(gpu, THREE)
    assert nvml.gpu_instance_remaining_capacity(gpu, ONE) == 0
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE)) == NvmlCode.INSUFFICIENT_RESOURCES


def test_a_media_instance_is_the_only_one(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    nvml.create_gpu_instance(gpu, ONE_ME)
    assert nvml.gpu_instance_remaining_capacity(gpu, ONE_ME) == 0
    assert nvml.gpu_instance_remaining_capacity(gpu, ONE) == 6
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE_ME)) == NvmlCode.INSUFFICIENT_RESOURCES


def test_an_explicit_placement_is_taken_or_refused(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    assert nvml.gpu_instance_possible_placements(gpu, THREE) == (Placement(0, 4), Placement(4, 4))
    instance = nvml.create_gpu_instance(gpu, THREE, Placement(4, 4))
    assert (instance.id, instance.placement) == (2, Placement(4, 4))
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE, Placement(5, 1))) == NvmlCode.INSUFFICIENT_RESOURCES
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE, Placement(7, 1))) == NvmlCode.INVALID_ARGUMENT
    assert code_of(lambda: nvml.create_gpu_instance(gpu, 99)) == NvmlCode.INVALID_ARGUMENT


def test_without_mig_only_placements_are_told(nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    assert len(nvml.gpu_instance_possible_placements(gpu, ONE)) == 7
    assert nvml.max_mig_device_count(gpu) == 0
    for call in (
        lambda: nvml.create_gpu_instance(gpu, ONE),
        lambda: nvml.gpu_instance_remaining_capacity(gpu, ONE),
        lambda: nvml.gpu_instances(gpu, ONE),
    ):
        assert code_of(call) == NvmlCode.NOT_SUPPORTED


def test_a_gpu_without_mig_refuses_every_mig_call(make_node: NodeFactory) -> None:
    nvml = make_node("t4x4").nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    for call in (
        lambda: nvml.mig_mode(gpu),
        lambda: nvml.set_mig_mode(gpu, 1),
        lambda: nvml.gpu_instance_profile(gpu, 0),
        lambda: nvml.create_gpu_instance(gpu, ONE),
    ):
        assert code_of(call) == NvmlCode.NOT_SUPPORTED
    assert nvml.max_mig_device_count(gpu) == 0


def test_compute_instances_share_a_gpu_instance(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    instance = nvml.create_gpu_instance(gpu, THREE)
    two = nvml.create_compute_instance(instance.handle, 1)
    one = nvml.create_compute_instance(instance.handle, 0)
    assert [(child.id, child.placement) for child in (two, one)] == [(0, Placement(0, 2)), (1, Placement(2, 1))]
    assert nvml.name(nvml.mig_device_by_index(gpu, 1)) == "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    assert code_of(lambda: nvml.create_compute_instance(instance.handle, 0)) == NvmlCode.INSUFFICIENT_RESOURCES
    assert code_of(lambda: nvml.create_compute_instance(instance.handle, 4)) == NvmlCode.INVALID_ARGUMENT
    assert code_of(lambda: nvml.compute_instance_profile(instance.handle, 8)) == NvmlCode.NOT_SUPPORTED
    assert code_of(lambda: nvml.compute_instance_profile(instance.handle, 9)) == NvmlCode.INVALID_ARGUMENT
    assert nvml.compute_instances(instance.handle, 1) == (two,)


def test_destroy_goes_from_the_inside_out_and_leaves_gaps(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    instances = [nvml.create_gpu_instance(gpu, TWO) for _ in range(3)]
    children = [nvml.create_compute_instance(each.handle, full(nvml, each)) for each in instances]
    assert code_of(lambda: nvml.destroy_gpu_instance(instances[1].handle)) == NvmlCode.IN_USE
    nvml.destroy_compute_instance(children[1].handle)
    nvml.destroy_gpu_instance(instances[1].handle)
    assert code_of(lambda: nvml.destroy_gpu_instance(instances[1].handle)) == NvmlCode.NOT_FOUND
    assert code_of(lambda: nvml.destroy_compute_instance(children[1].handle)) == NvmlCode.NOT_FOUND
    assert nvml.uuid(nvml.mig_device_by_index(gpu, 2)) == children[2].mig_uuid
    assert code_of(lambda: nvml.mig_device_by_index(gpu, 1)) == NvmlCode.NOT_FOUND


def test_a_partition_made_anew_in_its_place_has_its_old_uuid(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    def made() -> str:
        instance = nvml.create_gpu_instance(gpu, THREE, Placement(4, 4))
        child = nvml.create_compute_instance(instance.handle, full(nvml, instance))
        nvml.destroy_compute_instance(child.handle)
        nvml.destroy_gpu_instance(instance.handle)
        return child.mig_uuid

    assert made() == made()
    assert made().startswith("MIG-")


def test_a_partition_with_a_process_stays(node: SimulatedNode, nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    instance = nvml.create_gpu_instance(gpu, ONE)
    child = nvml.create_compute_instance(instance.handle, full(nvml, instance))
    node.set_processes(0, [ProcessState(pid=7, gpu_instance=instance.id, compute_instance=child.id)])
    assert code_of(lambda: nvml.destroy_compute_instance(child.handle)) == NvmlCode.IN_USE
    node.set_processes(0, [])
    nvml.destroy_compute_instance(child.handle)


def test_a_monitor_on_the_gpu_keeps_partitions_from_being_made(
    node: SimulatedNode, nvml: SimulatedNvml, gpu: DeviceHandle
) -> None:
    node.set_processes(0, [4711])
    assert code_of(lambda: nvml.create_gpu_instance(gpu, ONE)) == NvmlCode.IN_USE


def test_a_busy_gpu_keeps_its_mode_with_the_new_one_pending(nvml: SimulatedNvml, gpu: DeviceHandle) -> None:
    nvml.create_gpu_instance(gpu, ONE)
    assert nvml.set_mig_mode(gpu, 0) == NvmlCode.IN_USE
    mode = nvml.mig_mode(gpu)
    assert (mode.current, mode.pending) == (1, 0)
    assert code_of(lambda: nvml.set_mig_mode(gpu, 2)) == NvmlCode.INVALID_ARGUMENT


def test_an_a100_in_a_virtual_machine_needs_a_reset(make_node: NodeFactory) -> None:
    node = make_node("dgx-a100-40")
    gpu = node.state().gpus[0]
    model = node.profile.model_of(0)
    modes = model.modes.model_copy(update={"virtualization": model.modes.virtualization.model_copy(update={"nvml": 1})})
    status = mig.set_mode(gpu, model.model_copy(update={"modes": modes}), True)
    assert (status, gpu.mig_enabled, gpu.mig_pending) == (NvmlCode.RESET_REQUIRED, False, True)
    mig.activate_pending_mode(gpu)
    assert gpu.mig_enabled


def test_a_mode_change_may_give_another_minor(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    node.set_minor(0, 9, at_mode_change=True)
    gpu = nvml.device_by_index(0)
    assert nvml.minor_number(gpu) == 0
    nvml.set_mig_mode(gpu, 1)
    assert nvml.minor_number(gpu) == 9


def test_thor_holds_one_compute_and_one_graphics_instance(make_node: NodeFactory) -> None:
    nvml = make_node("jetson-thor").nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    nvml.set_mig_mode(gpu, 1)
    by_name = {}
    for enum in range(0x12):
        try:
            profile = nvml.gpu_instance_profile(gpu, enum)
        except NvmlError:
            continue
        by_name[profile.name.removeprefix("MIG ")] = profile.id
    nvml.create_gpu_instance(gpu, by_name["1g.0gb"])
    assert nvml.gpu_instance_remaining_capacity(gpu, by_name["1g.0gb+me"]) == 0
    nvml.create_gpu_instance(gpu, by_name["1g.0gb+gfx"])
    assert nvml.gpu_instance_remaining_capacity(gpu, by_name["3g.0gb"]) == 0


# --- any sequence of calls ---

PARTS = ("dgx-h100", "dgx-a100-40", "a30x2", "rtx-pro-6000x8", "hgx-b200", "jetson-thor")
ENGINES: tuple[Callable[[InstanceProfile], int], ...] = (
    lambda profile: profile.ce or 0,
    lambda profile: profile.dec,
    lambda profile: profile.enc,
    lambda profile: profile.jpeg,
    lambda profile: profile.ofa,
)

steps = st.lists(
    st.tuples(
        st.sampled_from(("create", "place", "destroy", "child", "orphan")), st.integers(0, 20), st.integers(0, 7)
    ),
    max_size=25,
)


def free_gpu(machine: str) -> tuple[GpuState, MigSpec]:
    profile = load_profile(machine)
    gpu = first_state(machine, profile).gpus[0]
    gpu.mig_enabled = True
    return gpu, profile.model_of(0).mig


def take(gpu: GpuState, spec: MigSpec, step: tuple[str, int, int]) -> None:
    action, which, where = step
    entry = spec.gpu_instance_profiles[which % len(spec.gpu_instance_profiles)]
    instance = gpu.gpu_instances[which % len(gpu.gpu_instances)] if gpu.gpu_instances else None
    if action == "create":
        mig.create_gpu_instance(gpu, spec, entry.profile.id, None)
    elif action == "place":
        starts = entry.profile.placement_starts
        placement = Placement(starts[where % len(starts)], entry.profile.placement_size)
        mig.create_gpu_instance(gpu, spec, entry.profile.id, placement)
    elif instance is None:
        return
    elif action == "destroy":
        mig.destroy_gpu_instance(gpu, instance.id)
    elif action == "child":
        parent = spec.entry(instance.profile_id)
        assert parent is not None
        offered = parent.compute_instance_profiles
        mig.create_compute_instance(gpu, spec, instance.id, offered[where % len(offered)].id)
    elif instance.compute_instances:
        mig.destroy_compute_instance(gpu, instance.id, instance.compute_instances[0].id)


def check(gpu: GpuState, spec: MigSpec) -> None:
    slices = [place for each in gpu.gpu_instances for place in range(each.start, each.end)]
    assert len(slices) == len(set(slices)), "placements overlap"
    assert set(slices) <= set(range(spec.placement_slices))
    assert len({each.id for each in gpu.gpu_instances}) == len(gpu.gpu_instances)
    held = [entry.profile for each in gpu.gpu_instances if (entry := spec.entry(each.profile_id)) is not None]
    everything = [entry.profile for entry in spec.gpu_instance_profiles]
    for engine in ENGINES:
        assert sum(map(engine, held)) <= max(map(engine, everything))
    for profile in held:
        assert sum(other.id == profile.id for other in held) <= profile.max
    children = gpu.compute_instances()
    assert len({child.mig_index for _, child in children}) == len(children)
    assert len({child.uuid for _, child in children}) == len(children)
    for each in gpu.gpu_instances:
        parts = [place for child in each.compute_instances for place in range(child.start, child.start + child.size)]
        assert len(parts) == len(set(parts)), "compute instances overlap"


@given(machine=st.sampled_from(PARTS), sequence=steps)
@settings(max_examples=150, deadline=None)
def test_no_sequence_of_calls_oversubscribes_a_gpu(machine: str, sequence: list[tuple[str, int, int]]) -> None:
    gpu, spec = free_gpu(machine)
    for step in sequence:
        before = gpu.model_copy(deep=True)
        try:
            take(gpu, spec, step)
        except NvmlError as e:
            assert e.code in (NvmlCode.INSUFFICIENT_RESOURCES, NvmlCode.IN_USE)
            assert gpu == before, "a refused call changed something"
        check(gpu, spec)


@given(machine=st.sampled_from(PARTS), sequence=steps)
@settings(max_examples=50, deadline=None)
def test_destroying_everything_gives_everything_back(machine: str, sequence: list[tuple[str, int, int]]) -> None:
    gpu, spec = free_gpu(machine)
    fresh = gpu.model_copy(deep=True)
    for step in sequence:
        try:
            take(gpu, spec, step)
        except NvmlError:
            continue
    for parent, child in gpu.compute_instances():
        mig.destroy_compute_instance(gpu, parent.id, child.id)
    for each in list(gpu.gpu_instances):
        mig.destroy_gpu_instance(gpu, each.id)
    assert gpu == fresh


@given(machine=st.sampled_from(PARTS), sequence=steps)
@settings(max_examples=50, deadline=None)
def test_the_remaining_capacity_can_be_had(machine: str, sequence: list[tuple[str, int, int]]) -> None:
    gpu, spec = free_gpu(machine)
    for step in sequence:
        try:
            take(gpu, spec, step)
        except NvmlError:
            continue
    for entry in spec.gpu_instance_profiles:
        trial = gpu.model_copy(deep=True)
        promised = mig.remaining_capacity(trial, spec, entry)
        for _ in range(promised):
            mig.create_gpu_instance(trial, spec, entry.profile.id, None)
        with pytest.raises(NvmlError) as raised:
            mig.create_gpu_instance(trial, spec, entry.profile.id, None)
        assert raised.value.code == NvmlCode.INSUFFICIENT_RESOURCES
