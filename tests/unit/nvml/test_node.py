"""What may happen to a node: GPUs that go, come back and change places, other drivers, reboots."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, open_node
from kubeletplugin.nvml.simulated.profile import MACHINES

from .conftest import NodeFactory


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(NvmlError) as raised:
        call()
    return raised.value.code


def uuids(nvml: SimulatedNvml) -> list[str]:
    return [nvml.uuid(nvml.device_by_index(index)) for index in range(nvml.device_count())]


def test_a_lost_gpu_is_still_enumerated(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(3)
    node.lose_gpu(3)
    assert nvml.device_count() == 8
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.GPU_IS_LOST
    assert code_of(lambda: nvml.name(nvml.device_by_index(3))) == NvmlCode.GPU_IS_LOST
    node.restore_gpu(3)
    assert nvml.uuid(gpu)


def test_a_removed_gpu_moves_the_others_up_and_comes_back(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    before = uuids(nvml)
    gpu = nvml.device_by_index(3)
    node.remove_gpu(before[3])
    assert uuids(nvml) == [uuid for uuid in before if uuid != before[3]]
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.GPU_IS_LOST
    assert code_of(lambda: nvml.device_by_uuid(before[3])) == NvmlCode.NOT_FOUND
    node.restore_gpu(before[3])
    assert uuids(nvml) == before


def test_the_order_may_change(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    before = uuids(nvml)
    node.set_order([7, 0])
    assert uuids(nvml) == [before[7], before[0], *before[1:7]]
    assert nvml.index(nvml.device_by_uuid(before[7])) == 0


def test_a_swapped_board_is_another_gpu(make_node: NodeFactory) -> None:
    node = make_node(mig="3=1g.10gb")
    nvml = node.nvml()
    nvml.init()
    old = nvml.device_by_index(3)
    node.replace_gpu(3, "GPU-00000000-0000-0000-0000-000000000003", "42")
    assert code_of(lambda: nvml.uuid(old)) == NvmlCode.GPU_IS_LOST
    new = nvml.device_by_index(3)
    assert (nvml.uuid(new), nvml.serial(new)) == ("GPU-00000000-0000-0000-0000-000000000003", "42")
    assert nvml.mig_mode(new).current == 0


def test_a_driver_that_is_not_there_yet(node: SimulatedNode) -> None:
    node.set_driver(loaded=False)
    nvml = node.nvml()
    assert code_of(nvml.init) == NvmlCode.DRIVER_NOT_LOADED
    node.set_driver(loaded=True)
    nvml.init()
    assert nvml.device_count() == 8


def test_a_driver_exchanged_under_a_session(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    node.set_driver(version="595.91.07")
    assert code_of(nvml.device_count) == NvmlCode.LIB_RM_VERSION_MISMATCH
    nvml.shutdown()
    nvml.init()
    assert (nvml.driver_version(), nvml.nvml_version()) == ("595.91.07", "13.595.91.07")


def test_a_reset_brings_a_pending_mode_into_force(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    node.set_processes(0, [4711])
    assert nvml.set_mig_mode(gpu, 1) == NvmlCode.IN_USE
    node.reset_gpu(0)
    assert nvml.mig_mode(gpu).current == 1
    assert nvml.processes(gpu) == ()


def test_a_recovery_action_lasts_until_the_reset(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    node.set_recovery_action(0, 2)
    assert nvml.recovery_action(gpu) == 2
    node.reset_gpu(0)
    assert nvml.recovery_action(gpu) == 0


@pytest.mark.parametrize(("machine", "profile", "mode_after"), [("dgx-h100", "1g.10gb", 0), ("a30x2", "1g.6gb", 1)])
def test_a_reboot_ends_partitions_and_keeps_the_mode_only_on_ampere(
    make_node: NodeFactory, machine: str, profile: str, mode_after: int
) -> None:
    node = make_node(machine, mig=f"0={profile}")
    node.set_processes(1, [7])
    boot_id = node.state().boot_id
    node.reboot()
    nvml = node.nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    assert (nvml.mig_mode(gpu).current, nvml.mig_mode(gpu).pending) == (mode_after, mode_after)
    assert node.state().gpus[0].gpu_instances == []
    assert nvml.processes(nvml.device_by_index(1)) == ()
    assert node.state().boots == 2
    assert node.state().boot_id != boot_id


def test_a_reboot_finds_lost_gpus_and_keeps_what_was_broken_on_purpose(node: SimulatedNode) -> None:
    node.lose_gpu(1)
    node.remove_gpu(2)
    node.inject_fault(3, "memory_info", NvmlCode.UNKNOWN)
    node.hang(4)
    node.push_xid(1, 79)
    nvml = node.nvml()
    nvml.init()
    nvml.set_compute_mode(nvml.device_by_index(0), 3)
    node.reboot()
    state = node.state()
    assert not state.gpus[1].lost
    assert not state.gpus[2].present
    assert [fault.gpu for fault in state.faults] == [3]
    assert state.events == []
    assert state.gpus[0].compute_mode == 0


def test_a_machine_from_a_file_is_found_again(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_bytes((MACHINES / "l4x1.yaml").read_bytes())
    made = open_node(str(profile), tmp_path / "state")
    assert SimulatedNode(made.store.path).profile.id == "l4x1"
