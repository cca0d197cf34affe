"""The simulated Nvml: identity, life cycle and the code of every refusal."""

from collections.abc import Callable

import pytest

from kubeletplugin.nvml.api import DeviceHandle, Memory, Nvml, Process
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, machine_names
from kubeletplugin.nvml.simulated.calls import C_NAMES
from kubeletplugin.nvml.simulated.state import FabricState, ProcessState

from .conftest import NodeFactory

GIB = 1 << 30


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(NvmlError) as raised:
        call()
    return raised.value.code


GETTERS: tuple[Callable[[Nvml, DeviceHandle], object], ...] = (
    lambda nvml, gpu: nvml.uuid(gpu),
    lambda nvml, gpu: nvml.name(gpu),
    lambda nvml, gpu: nvml.index(gpu),
    lambda nvml, gpu: nvml.minor_number(gpu),
    lambda nvml, gpu: nvml.serial(gpu),
    lambda nvml, gpu: nvml.module_id(gpu),
    lambda nvml, gpu: nvml.brand(gpu),
    lambda nvml, gpu: nvml.architecture(gpu),
    lambda nvml, gpu: nvml.cuda_compute_capability(gpu),
    lambda nvml, gpu: nvml.pci_info(gpu),
    lambda nvml, gpu: nvml.memory_info(gpu),
    lambda nvml, gpu: nvml.numa_node_id(gpu),
    lambda nvml, gpu: nvml.addressing_mode(gpu),
    lambda nvml, gpu: nvml.ecc_mode(gpu),
    lambda nvml, gpu: nvml.compute_mode(gpu),
    lambda nvml, gpu: nvml.persistence_mode(gpu),
    lambda nvml, gpu: nvml.virtualization_mode(gpu),
    lambda nvml, gpu: nvml.fabric_info(gpu),
    lambda nvml, gpu: nvml.nvlink_state(gpu, 0),
    lambda nvml, gpu: nvml.nvlink_remote_bus_id(gpu, 0),
    lambda nvml, gpu: nvml.recovery_action(gpu),
    lambda nvml, gpu: nvml.processes(gpu),
    lambda nvml, gpu: nvml.mig_mode(gpu),
    lambda nvml, gpu: nvml.max_mig_device_count(gpu),
    lambda nvml, gpu: nvml.supported_event_types(gpu),
)


@pytest.mark.parametrize("machine", machine_names())
def test_every_getter_answers_or_is_unsupported_on_every_machine(make_node: NodeFactory, machine: str) -> None:
    node = make_node(machine)
    nvml = node.nvml()
    nvml.init()
    assert nvml.device_count() == len(node.profile.gpus)
    answered = 0
    for index in range(nvml.device_count()):
        for getter in GETTERS:
            try:
                getter(nvml, nvml.device_by_index(index))
                answered += 1
            except NvmlError as e:
                assert e.unsupported, e
    assert answered > 15


def test_every_call_of_the_protocol_has_a_c_name() -> None:
    from kubeletplugin.nvml.api import EventSet

    calls = {name for protocol in (Nvml, EventSet) for name in vars(protocol) if not name.startswith("_")}
    assert calls == set(C_NAMES)


def test_every_unsupported_call_of_a_profile_fails_with_not_supported(make_node: NodeFactory) -> None:
    node = make_node("dgx-spark")
    nvml = node.nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    for getter in (nvml.memory_info, nvml.serial, nvml.mig_mode, nvml.ecc_mode, nvml.fabric_info, nvml.numa_node_id):
        assert code_of(lambda getter=getter: getter(gpu)) == NvmlCode.NOT_SUPPORTED  # type: ignore[misc]
    assert code_of(lambda: nvml.set_mig_mode(gpu, 1)) == NvmlCode.NOT_SUPPORTED


def test_a_call_that_the_driver_lacks_is_a_missing_symbol(make_node: NodeFactory) -> None:
    nvml = make_node("vgpu-guest").nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    assert code_of(lambda: nvml.addressing_mode(gpu)) == NvmlCode.FUNCTION_NOT_FOUND
    # The older fabric call stands in for the missing one, and isn't supported in a guest.
    assert code_of(lambda: nvml.fabric_info(gpu)) == NvmlCode.NOT_SUPPORTED


def test_calls_before_init_and_after_shutdown_are_uninitialised(node: SimulatedNode) -> None:
    nvml = node.nvml()
    assert code_of(nvml.device_count) == NvmlCode.UNINITIALIZED
    nvml.init()
    nvml.init()
    nvml.shutdown()
    assert nvml.device_count() == 8
    nvml.shutdown()
    assert code_of(nvml.device_count) == NvmlCode.UNINITIALIZED


def test_a_handle_does_not_survive_a_new_session(nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    nvml.shutdown()
    nvml.init()
    assert code_of(lambda: nvml.uuid(gpu)) == NvmlCode.UNINITIALIZED


def test_finds_devices_by_index_and_uuid(nvml: SimulatedNvml) -> None:
    uuid = nvml.uuid(nvml.device_by_index(3))
    assert nvml.index(nvml.device_by_uuid(uuid)) == 3
    assert code_of(lambda: nvml.device_by_index(8)) == NvmlCode.INVALID_ARGUMENT
    assert code_of(lambda: nvml.device_by_uuid("GPU-none")) == NvmlCode.NOT_FOUND


def test_memory_counts_what_the_driver_reserves_and_what_processes_use(
    node: SimulatedNode, nvml: SimulatedNvml
) -> None:
    gpu = nvml.device_by_index(0)
    reserved = 480 << 20
    assert nvml.memory_info(gpu) == Memory(85520809984, 85520809984 - reserved, reserved)
    node.set_processes(0, [ProcessState(pid=7, used_memory=GIB), 8])
    assert nvml.memory_info(gpu).used == reserved + GIB
    assert nvml.processes(gpu) == (Process(7, GIB), Process(8, None))


def test_fabric_comes_from_the_profile_until_it_is_set(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    gpu = nvml.device_by_index(0)
    assert (nvml.fabric_info(gpu).state, nvml.fabric_info(gpu).clique_id) == (3, 0)
    node.set_fabric(0, FabricState(state=2, clique_id=7, cluster_uuid="00000001-0000-0000-0000-000000000001"))
    assert (nvml.fabric_info(gpu).state, nvml.fabric_info(gpu).clique_id) == (2, 7)
    assert nvml.fabric_info(nvml.device_by_index(1)).state == 3


def test_compute_mode_is_the_partitions_while_mig_is_on(make_node: NodeFactory) -> None:
    nvml = make_node(mig="0=3g.40gb,3g.40gb").nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    first, second = nvml.mig_device_by_index(gpu, 0), nvml.mig_device_by_index(gpu, 1)
    assert code_of(lambda: nvml.set_compute_mode(gpu, 3)) == NvmlCode.NOT_SUPPORTED
    nvml.set_compute_mode(first, 3)
    assert (nvml.compute_mode(first), nvml.compute_mode(second)) == (3, 0)
    whole = nvml.device_by_index(1)
    nvml.set_compute_mode(whole, 2)
    assert nvml.compute_mode(whole) == 2
    assert code_of(lambda: nvml.set_compute_mode(whole, 4)) == NvmlCode.INVALID_ARGUMENT


def test_links_lead_to_switches_and_to_gpus(make_node: NodeFactory) -> None:
    nvml = make_node().nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    assert [nvml.nvlink_state(gpu, link) for link in range(18)] == [1] * 18
    assert nvml.nvlink_remote_bus_id(gpu, 0) == "00000000:07:00.0"
    assert code_of(lambda: nvml.nvlink_state(gpu, 18)) == NvmlCode.INVALID_ARGUMENT
    cube = make_node("v100x8").nvml()
    cube.init()
    assert cube.nvlink_remote_bus_id(cube.device_by_index(0), 0) == cube.pci_info(cube.device_by_index(1)).bus_id


def test_a_partition_answers_for_itself_and_refuses_what_is_the_gpus(make_node: NodeFactory) -> None:
    node = make_node(mig="0=2g.20gb,1g.10gb")
    nvml = node.nvml()
    nvml.init()
    gpu = nvml.device_by_index(0)
    partition = nvml.mig_device_by_index(gpu, 0)
    assert nvml.name(partition) == "NVIDIA H100 80GB HBM3 MIG 2g.20gb"
    assert nvml.memory_info(partition).total == 20096 << 20
    assert nvml.index(partition) == 0
    assert nvml.uuid(nvml.device_by_uuid(nvml.uuid(partition))) == nvml.uuid(partition)
    node.set_processes(0, [ProcessState(pid=7, gpu_instance=nvml.gpu_instance_id(partition), compute_instance=0)])
    assert [process.pid for process in nvml.processes(partition)] == [7]
    assert nvml.processes(nvml.mig_device_by_index(gpu, 1)) == ()
    assert [process.pid for process in nvml.processes(gpu)] == [7]
    assert code_of(lambda: nvml.minor_number(partition)) == NvmlCode.INVALID_ARGUMENT
    assert code_of(lambda: nvml.gpu_instance_id(gpu)) == NvmlCode.INVALID_ARGUMENT
    assert code_of(lambda: nvml.mig_device_by_index(gpu, 5)) == NvmlCode.NOT_FOUND
    assert code_of(lambda: nvml.mig_device_by_index(gpu, 7)) == NvmlCode.INVALID_ARGUMENT
    node.set_mig_layout("0=")
    assert code_of(lambda: nvml.uuid(partition)) == NvmlCode.NOT_FOUND
