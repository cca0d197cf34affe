"""MIG operations: the real implementation over the mock library and the simulator take every step the same way.

The same story runs over either: instances of every profile until the GPU is full, placements asked for and refused,
compute instances until full, destruction in the wrong and in the right order. Compared are the results and error codes
of each step; a MIG device's UUID only by its form, since drivers choose it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeletplugin.nvml.api import (
    ComputeInstance,
    ComputeInstanceProfile,
    DeviceHandle,
    GpuInstance,
    Nvml,
    Placement,
)
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import open_simulated
from kubeletplugin.nvml.simulated.profile import load_profile, machine_names
from kubeletplugin.nvml.simulated.schema import MachineProfile
from tests.contract.nvml.snapshot import NO_SUCH_PROFILE, device_snapshot, outcome
from tests.nvmlmock.mock import MakeMock, OpenReal

CAPABLE = [name for name in machine_names() if load_profile(name).model_of(0).mig.capable]
Story = Callable[[Nvml, MachineProfile], Iterator[tuple[str, object]]]


def both(story: Story, machine: str, real: Nvml, state: Path) -> None:
    profile = load_profile(machine)
    simulated = open_simulated(machine, state)
    simulated.init()
    for number, (ours, theirs) in enumerate(zip(story(real, profile), story(simulated, profile), strict=True)):
        assert ours == theirs, f"step {number}"


@pytest.mark.parametrize("machine", machine_names())
def test_mode(machine: str, make_mock: MakeMock, open_real_nvml: OpenReal, tmp_path: Path) -> None:
    both(mode_story, machine, open_real_nvml(make_mock(load_profile(machine))), tmp_path / "state")


@pytest.mark.parametrize("machine", CAPABLE)
def test_gpu_instances(machine: str, make_mock: MakeMock, open_real_nvml: OpenReal, tmp_path: Path) -> None:
    both(gpu_instance_story, machine, open_real_nvml(make_mock(load_profile(machine))), tmp_path / "state")


@pytest.mark.parametrize("machine", CAPABLE)
def test_compute_instances(machine: str, make_mock: MakeMock, open_real_nvml: OpenReal, tmp_path: Path) -> None:
    both(compute_instance_story, machine, open_real_nvml(make_mock(load_profile(machine))), tmp_path / "state")


def test_mig_uuid_where_a_driver_keeps_to_the_header(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    """nvml.h calls the device of a compute instance its parent."""
    nvml = open_real_nvml(make_mock(load_profile("dgx-h100"), {"ciInfoParent": "1"}))
    device = nvml.device_by_index(3)
    nvml.set_mig_mode(device, 1)
    for _ in range(2):
        compute = nvml.create_compute_instance(nvml.create_gpu_instance(device, 19).handle, 0)
    mig_device = nvml.mig_device_by_index(device, 1)
    assert compute.mig_uuid == nvml.uuid(mig_device)
    assert compute.mig_uuid != nvml.uuid(nvml.mig_device_by_index(device, 0))


def mode_story(nvml: Nvml, profile: MachineProfile) -> Iterator[tuple[str, object]]:
    for index in range(len(profile.gpus)):
        device = nvml.device_by_index(index)
        for mode in (1, 1, 0, 2, 1):
            yield f"set mode {mode}", outcome(nvml.set_mig_mode, device, mode)
            yield "mode", outcome(nvml.mig_mode, device)
            yield "max devices", outcome(nvml.max_mig_device_count, device)
        yield "set compute mode", outcome(nvml.set_compute_mode, device, 3)
        yield "compute mode", outcome(nvml.compute_mode, device)


def gpu_instance_story(nvml: Nvml, profile: MachineProfile) -> Iterator[tuple[str, object]]:
    device = nvml.device_by_index(0)
    rows = profile.model_of(0).mig.gpu_instance_profiles
    yield "create while off", outcome(nvml.create_gpu_instance, device, rows[0].profile.id)
    nvml.set_mig_mode(device, 1)
    yield "create an unknown profile", outcome(nvml.create_gpu_instance, device, NO_SUCH_PROFILE)
    for row in (entry.profile for entry in rows):
        made = []
        while isinstance(instance := outcome(nvml.create_gpu_instance, device, row.id), GpuInstance):
            made.append(instance)
            yield f"create {row.name}", plain(instance)
            yield "left", capacities(nvml, device, profile)
        yield f"{row.name} when full", instance
        yield "mode off", outcome(nvml.set_mig_mode, device, 0)
        yield "mode on", outcome(nvml.set_mig_mode, device, 1)
        yield "listed", {plain(found) for found in nvml.gpu_instances(device, row.id)}
        yield f"destroy {row.name}", [outcome(nvml.destroy_gpu_instance, entry.handle) for entry in made]
        yield "destroy again", [outcome(nvml.destroy_gpu_instance, entry.handle) for entry in made]
    yield from placement_story(nvml, device, profile)


def placement_story(nvml: Nvml, device: DeviceHandle, profile: MachineProfile) -> Iterator[tuple[str, object]]:
    for row in (entry.profile for entry in profile.model_of(0).mig.gpu_instance_profiles):
        wanted = Placement(row.placement_starts[-1], row.placement_size)
        for title, placement in {
            "placed": wanted,
            "on top": wanted,
            "another size": Placement(wanted.start, wanted.size + 1),
            "off the grid": Placement(63, wanted.size),
        }.items():
            yield f"{title} {row.name}", plain(outcome(nvml.create_gpu_instance, device, row.id, placement))
        for other in (entry.profile for entry in profile.model_of(0).mig.gpu_instance_profiles):
            made = outcome(nvml.create_gpu_instance, device, other.id)
            yield f"{other.name} beside {row.name}", plain(made)
            if isinstance(made, GpuInstance):
                nvml.destroy_gpu_instance(made.handle)
        for instance in nvml.gpu_instances(device, row.id):
            nvml.destroy_gpu_instance(instance.handle)


def compute_instance_story(nvml: Nvml, profile: MachineProfile) -> Iterator[tuple[str, object]]:
    device = nvml.device_by_index(0)
    nvml.set_mig_mode(device, 1)
    for row in (entry.profile for entry in profile.model_of(0).mig.gpu_instance_profiles):
        instance = nvml.create_gpu_instance(device, row.id)
        yield "unknown profile", outcome(nvml.create_compute_instance, instance.handle, 99)
        for enum in range(10):
            compute = outcome(nvml.compute_instance_profile, instance.handle, enum)
            yield f"compute profile {enum} of {row.name}", compute
            if isinstance(compute, ComputeInstanceProfile):
                yield from fill(nvml, device, instance, compute.id)
        yield "destroy", outcome(nvml.destroy_gpu_instance, instance.handle)


def fill(nvml: Nvml, device: DeviceHandle, parent: GpuInstance, profile_id: int) -> Iterator[tuple[str, object]]:
    made = []
    while isinstance(compute := outcome(nvml.create_compute_instance, parent.handle, profile_id), ComputeInstance):
        made.append(compute)
        yield "create", plain(compute)
    yield "when full", compute
    yield "listed", {plain(found) for found in nvml.compute_instances(parent.handle, profile_id)}
    yield "parent destroyed too early", outcome(nvml.destroy_gpu_instance, parent.handle)
    yield from devices(nvml, device)
    handles = [nvml.device_by_uuid(compute.mig_uuid) for compute in made]
    yield "set compute mode", [outcome(nvml.set_compute_mode, handle, 3) for handle in handles]
    # The first is taken away first, so that the indices that are left have a gap.
    for compute in made:
        yield "destroy", outcome(nvml.destroy_compute_instance, compute.handle)
        yield "indices", [indexed(nvml, device, index) for index in range(9)]
    yield "gone", [outcome(nvml.uuid, handle) for handle in handles]


def devices(nvml: Nvml, device: DeviceHandle) -> Iterator[tuple[str, object]]:
    for index in range(nvml.max_mig_device_count(device)):
        try:
            mig_device = nvml.mig_device_by_index(device, index)
        except NvmlError as error:
            yield f"MIG device {index}", error.code
            continue
        answers = device_snapshot(nvml, mig_device)
        uuid = str(answers.pop("uuid"))
        yield from ((f"{key} of MIG device {index}", answer) for key, answer in answers.items())
        yield "UUID", uuid.startswith("MIG-")
        yield "found by UUID", nvml.index(nvml.device_by_uuid(uuid))


def indexed(nvml: Nvml, device: DeviceHandle, index: int) -> object:
    found = outcome(nvml.mig_device_by_index, device, index)
    return found if isinstance(found, NvmlCode) else "there"


def capacities(nvml: Nvml, device: DeviceHandle, profile: MachineProfile) -> dict[str, object]:
    rows = [entry.profile for entry in profile.model_of(0).mig.gpu_instance_profiles]
    return {row.name: outcome(nvml.gpu_instance_remaining_capacity, device, row.id) for row in rows}


Plain = tuple[int, int, Placement]


def plain(result: object) -> Plain | NvmlCode:
    """A result without its handle and UUID, which belong to their Nvml."""
    if isinstance(result, ComputeInstance):
        assert result.mig_uuid.startswith("MIG-")
    if isinstance(result, GpuInstance | ComputeInstance):
        return result.id, result.profile_id, result.placement
    assert isinstance(result, NvmlCode)
    return result
