"""Everything that an Nvml says about its machine, as data, whatever implements it."""

from collections.abc import Callable

from kubeletplugin.nvml.api import DeviceHandle, GpuInstanceProfile, Nvml
from kubeletplugin.nvml.errors import NvmlError

MAX_LINKS = 19
NO_SUCH_UUID = "GPU-00000000-0000-0000-0000-000000000000"
NO_SUCH_PROFILE = 250
PROFILE_ENUMS = 0x13  # one more than there are
SYSTEM_GETTERS = ("driver_version", "nvml_version", "cuda_driver_version", "device_count")
DEVICE_GETTERS = (
    "uuid",
    "name",
    "index",
    "minor_number",
    "serial",
    "module_id",
    "brand",
    "architecture",
    "cuda_compute_capability",
    "pci_info",
    "memory_info",
    "numa_node_id",
    "addressing_mode",
    "ecc_mode",
    "compute_mode",
    "persistence_mode",
    "virtualization_mode",
    "fabric_info",
    "recovery_action",
    "processes",
    "mig_mode",
    "max_mig_device_count",
    "gpu_instance_id",
    "compute_instance_id",
    "supported_event_types",
)


def snapshot(nvml: Nvml) -> dict[str, object]:
    """Each answer, or the code of the refusal, under ``<device>.<method>[.<argument>]``."""
    answers = {name: outcome(getattr(nvml, name)) for name in SYSTEM_GETTERS}
    count = nvml.device_count()
    answers["device_by_index.beyond"] = outcome(nvml.device_by_index, count)
    answers["device_by_uuid.unknown"] = outcome(nvml.device_by_uuid, NO_SUCH_UUID)
    for index in range(count):
        device = nvml.device_by_index(index)
        found = device_snapshot(nvml, device) | _tables(nvml, device)
        found["found by UUID"] = nvml.uuid(nvml.device_by_uuid(nvml.uuid(device))) == nvml.uuid(device)
        answers |= {f"{index}.{key}": value for key, value in found.items()}
    return answers


def device_snapshot(nvml: Nvml, device: DeviceHandle) -> dict[str, object]:
    """What the getters without further arguments say."""
    return {name: outcome(getattr(nvml, name), device) for name in DEVICE_GETTERS}


def outcome(call: Callable[..., object], *arguments: object) -> object:
    """What the call returns, or its error's code."""
    try:
        return call(*arguments)
    except NvmlError as error:
        return error.code


def _tables(nvml: Nvml, device: DeviceHandle) -> dict[str, object]:
    answers: dict[str, object] = {}
    for link in range(MAX_LINKS):
        answers[f"nvlink_state.{link}"] = outcome(nvml.nvlink_state, device, link)
        answers[f"nvlink_remote_bus_id.{link}"] = outcome(nvml.nvlink_remote_bus_id, device, link)
    ids = set()
    for enum in range(PROFILE_ENUMS):
        profile = outcome(nvml.gpu_instance_profile, device, enum)
        answers[f"gpu_instance_profile.{enum}"] = profile
        if isinstance(profile, GpuInstanceProfile):
            ids.add(profile.id)
    for profile_id in sorted(ids | {NO_SUCH_PROFILE}):
        answers |= _profile_answers(nvml, device, profile_id)
    return answers


def _profile_answers(nvml: Nvml, device: DeviceHandle, profile_id: int) -> dict[str, object]:
    methods = ("gpu_instance_possible_placements", "gpu_instance_remaining_capacity", "gpu_instances")
    answers = {f"{name}.{profile_id}": outcome(getattr(nvml, name), device, profile_id) for name in methods}
    return {key: _sorted(value) for key, value in answers.items()}


def _sorted(value: object) -> object:
    return sorted(value, key=repr) if isinstance(value, tuple) else value
