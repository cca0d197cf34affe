"""Facts turned into the attributes and capacities of a device, in publishing order and within the API's limit.

Only the keys are decided here; names users know live in ``deviceclasses.names``. A key whose value isn't known is
absent. Booleans are published when false, so that a selector on them works on every device of the type.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from deviceclasses import names
from kubeletplugin.inventory import naming, nvlink, quantities
from kubeletplugin.inventory.facts import GpuFacts, NodeFacts, PartitionFacts
from kubeletplugin.inventory.model import Attribute, Device, DeviceKind, MigIdentity

MAX_TEXT_BYTES = 64
"""Of a string or version value (resource.k8s.io/v1)."""


def gpu_device(gpu: GpuFacts, node: NodeFacts, nvlink_domain: str | None) -> Device:
    """The whole GPU, under its plain name."""
    values = _of_parent(gpu, node) | {
        names.ATTRIBUTE_TYPE: names.TYPE_GPU,
        names.ATTRIBUTE_UUID: gpu.uuid,
        names.ATTRIBUTE_NVLINK_DOMAIN: nvlink_domain,
        names.ATTRIBUTE_CLIQUE_ID: nvlink.clique_id(gpu.nvlink),
    }
    return Device(
        name=naming.gpu_name(gpu.minor),
        kind=DeviceKind.GPU,
        uuid=gpu.uuid,
        gpu_uuid=gpu.uuid,
        minor=gpu.minor,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id,
        attributes=_ordered(values),
        capacity={names.CAPACITY_MEMORY: quantities.binary(gpu.memory_bytes)},
        memory_bytes=gpu.memory_bytes,
    )


def mig_device(gpu: GpuFacts, part: PartitionFacts, node: NodeFacts) -> Device:
    """A partition, under its plain name. Where memory is unified, the partition's is the system's too."""
    values = _of_parent(gpu, node) | {
        names.ATTRIBUTE_TYPE: names.TYPE_MIG,
        names.ATTRIBUTE_UUID: part.uuid,
        names.ATTRIBUTE_PARENT_UUID: gpu.uuid,
        names.ATTRIBUTE_PROFILE: part.profile,
    }
    memory = part.memory_mib * 2**20 or gpu.memory_bytes
    return Device(
        name=naming.mig_name(gpu.minor, part.profile, part.profile_id, part.placement_start),
        kind=DeviceKind.MIG,
        uuid=part.uuid,
        gpu_uuid=gpu.uuid,
        minor=gpu.minor,
        index=gpu.index,
        pci_bus_id=gpu.pci_bus_id,
        attributes=_ordered(values),
        capacity=_mig_capacity(part, memory),
        mig=MigIdentity(
            profile=part.profile,
            profile_id=part.profile_id,
            placement_start=part.placement_start,
            placement_size=part.placement_size,
            gpu_instance_id=part.gpu_instance_id,
            compute_instance_id=part.compute_instance_id,
        ),
        memory_bytes=memory,
    )


def _of_parent(gpu: GpuFacts, node: NodeFacts) -> dict[str, str | int | bool | None]:
    major, minor = gpu.cuda_compute_capability
    return {
        names.ATTRIBUTE_PRODUCT_NAME: gpu.product_name,
        names.ATTRIBUTE_BRAND: gpu.brand,
        names.ATTRIBUTE_ARCHITECTURE: gpu.architecture,
        names.ATTRIBUTE_CUDA_COMPUTE_CAPABILITY: f"{major}.{minor}.0",
        names.ATTRIBUTE_DRIVER_VERSION: node.driver_version,
        names.ATTRIBUTE_CUDA_DRIVER_VERSION: node.cuda_driver_version,
        names.ATTRIBUTE_PCI_BUS_ID: gpu.pci_bus_id,
        names.ATTRIBUTE_PCIE_ROOT: gpu.pcie_root,
        names.ATTRIBUTE_NUMA_NODE: gpu.numa_node,
        names.ATTRIBUTE_ADDRESSING_MODE: gpu.addressing_mode,
        names.ATTRIBUTE_GPU_MODULE_ID: gpu.module_id,
        names.ATTRIBUTE_INDEX: gpu.index,
        names.ATTRIBUTE_MINOR: gpu.minor,
        names.ATTRIBUTE_UNIFIED_MEMORY: gpu.unified_memory,
        names.ATTRIBUTE_ECC_ENABLED: gpu.ecc_enabled,
        names.ATTRIBUTE_DRIVER_VERSION_RAW: node.driver_version_raw,
    }


def _ordered(values: Mapping[str, str | int | bool | None]) -> dict[str, Attribute]:
    present = {key: value for key in names.ATTRIBUTE_KEEP_ORDER if (value := values.get(key)) is not None}
    return {key: _attribute(key, value) for key, value in present.items()}


def _attribute(key: str, value: str | int | bool) -> Attribute:
    if isinstance(value, bool):
        return Attribute("bool", value)
    if isinstance(value, int):
        return Attribute("int", value)
    return Attribute("version" if key in names.VERSION_ATTRIBUTES else "string", _cut(value))


def _cut(text: str) -> str:
    return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def _mig_capacity(part: PartitionFacts, memory: int) -> dict[str, str]:
    counts = {
        names.CAPACITY_MULTIPROCESSORS: part.multiprocessors,
        names.CAPACITY_COPY_ENGINES: part.copy_engines,
        names.CAPACITY_DECODERS: part.decoders,
        names.CAPACITY_ENCODERS: part.encoders,
        names.CAPACITY_JPEG_ENGINES: part.jpeg_engines,
        names.CAPACITY_OFA_ENGINES: part.ofa_engines,
    }
    slices = range(part.placement_start, part.placement_start + part.placement_size)
    return {
        names.CAPACITY_MEMORY: quantities.binary(memory),
        **{key: quantities.decimal(count) for key, count in counts.items()},
        **{names.CAPACITY_MEMORY_SLICE.format(number): "1" for number in slices},
    }


def within_limit(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The same devices with at most MAX_KEYS keys each. What gives way is the same for all devices of one kind, so
    that a selector that works on one partition of a node works on its neighbours."""
    devices = tuple(devices)
    dropped = {kind: _given_way([device for device in devices if device.kind is kind]) for kind in DeviceKind}
    return tuple(_without(device, dropped[device.kind]) for device in devices)


def _given_way(devices: list[Device]) -> frozenset[str]:
    """The shortest tail of the keep order without which all ``devices`` fit."""
    core = names.CORE_ATTRIBUTES[devices[0].kind] if devices else frozenset()
    optional = [key for key in names.ATTRIBUTE_KEEP_ORDER if key not in core]
    kept = len(optional)
    while kept and not all(_fits(device, optional[kept:]) for device in devices):
        kept -= 1
    return frozenset(optional[kept:])


def _fits(device: Device, dropped: Iterable[str]) -> bool:
    return len(device.attributes.keys() - dropped) + len(device.capacity) <= names.MAX_KEYS


def _without(device: Device, dropped: frozenset[str]) -> Device:
    if not dropped & device.attributes.keys():
        return device
    kept = {key: value for key, value in device.attributes.items() if key not in dropped}
    return replace(device, attributes=kept)
