"""A machine profile as the mock's flat file.

A second reading of the profile beside the simulator's, so that what two readings say can be compared. Where a profile
says null the mock answers NOT_SUPPORTED, and nothing is compared.
"""

import uuid
from collections.abc import Iterator

from kubeletplugin.nvml.simulated.schema import Gpu, GpuModel, InstanceProfileEntry, MachineProfile

MIB = 1 << 20


def render(profile: MachineProfile, extra: dict[str, str] | None = None) -> str:
    """The file's text; ``extra`` entries replace or add to those of the profile."""
    entries = {
        "driverVersion": profile.driver.version,
        "nvmlVersion": profile.driver.nvml_version,
        "cudaDriverVersion": str(profile.driver.cuda_driver_version),
        "devices": str(len(profile.gpus)),
    }
    for gpu in profile.gpus:
        model = profile.models[gpu.model]
        for key, value in _gpu(profile, gpu, model):
            if key.partition(".")[0] not in model.not_supported:
                entries[f"{gpu.index}.{key}"] = value
    entries.update(extra or {})
    return "".join(f"{key}={value}\n" for key, value in entries.items())


def _gpu(profile: MachineProfile, gpu: Gpu, model: GpuModel) -> Iterator[tuple[str, str]]:
    modes, addressing = model.modes, model.modes.addressing
    numbers = {
        "nvmlDeviceGetIndex": gpu.index,
        "nvmlDeviceGetMinorNumber": gpu.minor,
        "nvmlDeviceGetModuleId": gpu.module_id,
        "nvmlDeviceGetBrand": model.brand.nvml,
        "nvmlDeviceGetArchitecture": model.architecture.nvml,
        "nvmlDeviceGetNumaNodeId": gpu.nvml_numa_node_id,
        "nvmlDeviceGetAddressingMode": addressing.nvml if addressing else None,
        "nvmlDeviceGetComputeMode": modes.compute.nvml,
        "nvmlDeviceGetPersistenceMode": int(modes.persistence == "Enabled"),
        "nvmlDeviceGetVirtualizationMode": modes.virtualization.nvml,
        "nvmlDeviceGetSupportedEventTypes": model.events.supported_mask,
        "field.230": model.recovery_action.nvml if model.recovery_action.supported else None,
        "pciDeviceId": model.pci.device_id,
        "pciSubSystemId": model.pci.subsystem_id,
    }
    yield from ((key, str(number)) for key, number in numbers.items() if number is not None)
    yield "nvmlDeviceGetUUID", gpu.uuid
    yield "nvmlDeviceGetName", model.name
    if gpu.serial is not None:
        yield "nvmlDeviceGetSerial", gpu.serial
    major, minor = model.cuda_compute_capability
    yield "nvmlDeviceGetCudaComputeCapability", f"{major} {minor}"
    yield "nvmlDeviceGetPciInfo", gpu.pci_bus_id
    if model.memory.total_bytes is not None:
        used = MIB * (model.memory.used_mib + (model.memory.reserved_mib or 0))
        yield "nvmlDeviceGetMemoryInfo", f"{model.memory.total_bytes} {model.memory.total_bytes - used} {used}"
    if model.ecc.supported:
        yield "nvmlDeviceGetEccMode", f"{int(bool(model.ecc.current))} {int(bool(model.ecc.pending))}"
    for kind in ("Compute", "Graphics", "MPSCompute"):
        yield f"nvmlDeviceGet{kind}RunningProcesses", ""
    yield from _links(profile, gpu, model)
    yield from _fabric(profile)
    yield from _mig(model)


def _links(profile: MachineProfile, gpu: Gpu, model: GpuModel) -> Iterator[tuple[str, str]]:
    bus_ids = {switch.name: switch.pci_bus_id for switch in profile.nvlink_fabric.nvswitches}
    bus_ids |= {f"gpu{other.index}": other.pci_bus_id for other in profile.gpus}
    for link in range(model.nvlink.links):
        yield f"nvmlDeviceGetNvLinkState.{link}", str(int(link < model.nvlink.active_links))
    for link, target in enumerate(gpu.nvlink.link_targets):
        if target in bus_ids:
            yield f"nvmlDeviceGetNvLinkRemotePciInfo.{link}", bus_ids[target]


def _fabric(profile: MachineProfile) -> Iterator[tuple[str, str]]:
    fabric = profile.fabric
    if fabric.state is None or fabric.status is None:
        return
    numbers = (fabric.clique_id, fabric.state.nvml, fabric.status.nvml, fabric.health_mask)
    yield "nvmlDeviceGetGpuFabricInfo", " ".join(map(str, numbers))
    yield "fabricCluster", uuid.UUID(fabric.cluster_uuid).hex


def _mig(model: GpuModel) -> Iterator[tuple[str, str]]:
    mig = model.mig
    if "nvmlDeviceGetMigMode" not in model.not_supported:
        yield "mig.mode", str(int(mig.mode_current == "Enabled"))
    if not mig.capable:
        return
    needs_reset = mig.mode_toggle_needs_gpu_reset and model.modes.virtualization.nvml != 0
    yield "mig.capable", "1"
    yield "mig.needsReset", str(int(needs_reset))
    if mig.extra_rules is not None:
        # The one rule that a profile states.
        yield "mig.pairs", "1"
    yield "mig.maxDevices", str(mig.max_mig_devices)
    for entry in mig.gpu_instance_profiles:
        for key, value in _instance_profile(model, entry):
            yield f"mig.{entry.profile.enum}.{key}", value


def _instance_profile(model: GpuModel, entry: InstanceProfileEntry) -> Iterator[tuple[str, str]]:
    row = entry.profile
    numbers = (row.id, row.slices, row.max, row.memory_mib, row.sm)
    engines = (row.ce or 0, row.dec, row.enc, row.jpeg, row.ofa)
    preferred = model.mig.default_placement_order.get(row.placement_size, ())
    chosen = [start for start in preferred if start in row.placement_starts]
    order = (*chosen, *(start for start in row.placement_starts if start not in chosen))
    yield "info", " ".join(map(str, numbers + engines))
    yield "name", model.mig.profile_info_name_prefix + row.name
    yield "graphics", str(int("gfx" in row.attrs))
    yield "size", str(row.placement_size)
    yield "starts", " ".join(map(str, row.placement_starts))
    yield "order", " ".join(map(str, order))
    if entry.gpu_instance_ids is not None:
        yield "ids", " ".join(map(str, entry.gpu_instance_ids))
    for compute in entry.compute_instance_profiles:
        yield f"ci.{compute.enum}", f"{compute.id} {compute.slices} {compute.max} {compute.sm}"
        name = row.name if compute.slices == row.slices else f"{compute.slices}c.{row.name}"
        yield f"ci.{compute.enum}.name", f"MIG {name}"
