"""The machine profile file, version 1: what a simulated machine has, as typed frozen models.

A profile is facts about one real machine, each with its source in a trailing comment. ``null`` means unknown or not
applicable; what the simulator answers then is decided in ``facts.py``, and no test may depend on it. Keys are strict:
an unknown key or a wrong type is an error that says where, because a typing mistake in a profile would otherwise
quietly simulate another machine. Names and units are those of NVML and ``nvidia-smi``.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


def camel(name: str) -> str:
    """``smCount`` for ``sm_count``; unlike pydantic's own, it leaves the ``c`` after a digit alone (``c2c``)."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


class Part(BaseModel):
    model_config = ConfigDict(alias_generator=camel, extra="forbid", frozen=True, strict=True)


class Named(Part):
    """An enumeration value: what nvidia-smi prints and NVML's number."""

    name: str | None
    nvml: int | None


class Host(Part):
    vendor: str
    product: str
    cpu_arch: Literal["x86_64", "aarch64"]
    cpu: str
    sockets: int
    hypervisor: str


class Driver(Part):
    version: str
    branch: int
    nvml_version: str
    cuda_version: str
    cuda_driver_version: int
    kernel_modules: Literal["open", "proprietary"]
    missing_symbols: tuple[str, ...] = ()


class NumaNode(Part):
    id: int
    cpus: str
    kind: Literal["cpu", "gpu", "reserved"] = "cpu"
    gpu: int | None = None


class MemorySpec(Part):
    info_supported: bool
    total_bytes: int | None
    total_mib: Annotated[int | None, Field(alias="totalMiB")]
    reserved_mib: Annotated[int | None, Field(alias="reservedMiB")]
    used_mib: Annotated[int, Field(alias="usedMiB")] = 0
    system_mem_total_kib: Annotated[int | None, Field(alias="systemMemTotalKiB")] = None


class PciSpec(Part):
    device_id: int
    subsystem_id: int | None
    max_link_gen: int | None
    current_link_gen: int | None
    max_link_width: int | None
    current_link_width: int | None


class Board(Part):
    vbios: str | None
    board_part_number: str | None
    gpu_part_number: str | None
    inforom_image: str | None


class ModeSpec(Part):
    persistence: Literal["Enabled", "Disabled"]
    compute: Named
    addressing: Named | None
    virtualization: Named
    c2c: Literal["Enabled", "Disabled", "unsupported"]
    gsp_firmware: bool


class Ecc(Part):
    supported: bool
    current: bool | None
    pending: bool | None
    default: bool | None


class RemappedRows(Part):
    supported: bool
    max_banks: int | None


class RetiredPages(Part):
    supported: bool


class MemoryHealth(Part):
    remapped_rows: RemappedRows
    retired_pages: RetiredPages


class Power(Part):
    supported: bool
    min_milliwatt: int | None
    default_milliwatt: int | None
    max_milliwatt: int | None
    enforced_milliwatt: int | None
    idle_draw_milliwatt: int | None = None


class ModulePower(Part):
    default_milliwatt: int
    max_milliwatt: int
    min_milliwatt: int | None = None


class Thermal(Part):
    gpu_c: int | None
    memory_c: int | None
    thresholds: dict[str, int] | None


class Clocks(Part):
    graphics_max: int | None
    memory_max: int | None


class Fan(Part):
    supported: bool
    fans: int = 0


class EventSpec(Part):
    supported_mask: int
    xid: bool


class RecoverySpec(Part):
    supported: bool
    name: str | None
    nvml: int | None


class NvLinkSpec(Part):
    links: int
    generation: int | None = None
    version_enum: int | None = None
    remote_device_type: int | None = None
    active_links: int = 0


class InstanceProfile(Part):
    """A GPU instance profile; ``memory_mib`` of one instance, engine counts None where unpublished."""

    enum: int
    id: int
    name: str
    slices: int
    max: int
    memory_mib: Annotated[int, Field(alias="memoryMiB")]
    sm: int
    ce: int | None
    dec: int
    enc: int
    jpeg: int
    ofa: int
    p2p: bool
    attrs: tuple[str, ...]
    placement_starts: tuple[int, ...]
    placement_size: int


class ComputeProfile(Part):
    enum: int
    id: int
    slices: int
    max: int
    sm: int


class InstanceProfileEntry(Part):
    """``gpu_instance_ids`` holds one id per placement start; None where the numbering isn't known."""

    profile: InstanceProfile
    gpu_instance_ids: tuple[int, ...] | None
    compute_instance_profiles: tuple[ComputeProfile, ...]

    @property
    def full_compute_profile(self) -> ComputeProfile:
        """The compute instance that takes the whole GPU instance."""
        return next(entry for entry in self.compute_instance_profiles if entry.slices == self.profile.slices)


class MigSpec(Part):
    capable: bool
    mode_current: Literal["Enabled", "Disabled"] | None = None
    mode_pending: Literal["Enabled", "Disabled"] | None = None
    mode_toggle_needs_gpu_reset: bool = False
    placement_slices: int = 0
    max_mig_devices: int = 0
    minimum_driver: str | None = None
    profile_info_name_prefix: str = ""
    default_placement_order: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    gpu_instance_profiles: tuple[InstanceProfileEntry, ...] = ()
    extra_rules: str | None = None

    def entry(self, profile_id: int) -> InstanceProfileEntry | None:
        return next((entry for entry in self.gpu_instance_profiles if entry.profile.id == profile_id), None)

    def named(self, name: str) -> InstanceProfileEntry | None:
        return next((entry for entry in self.gpu_instance_profiles if entry.profile.name == name), None)


class GpuModel(Part):
    """What all GPUs of one part number share."""

    name: str
    brand: Named
    architecture: Named
    cuda_compute_capability: tuple[int, int]
    sm_count: int
    cuda_cores: int
    memory: MemorySpec
    bar1_mib: Annotated[int | None, Field(alias="bar1MiB")]
    pci: PciSpec
    board: Board
    modes: ModeSpec
    ecc: Ecc
    memory_health: MemoryHealth
    power: Power
    module_power: ModulePower | None = None
    thermal: Thermal
    clocks_mhz: Annotated[Clocks, Field(alias="clocksMHz")]
    fan: Fan
    events: EventSpec
    recovery_action: RecoverySpec
    nvlink: NvLinkSpec
    mig: MigSpec
    not_supported: tuple[str, ...]
    not_supported_field_ids: tuple[int, ...] = ()
    quirks: tuple[str, ...] = ()


class PlatformInfo(Part):
    chassis_serial: str
    slot_number: int | None
    tray_index: int | None
    host_id: int
    peer_type: str
    peer_type_nvml: int
    module_id: int


class GpuLinks(Part):
    link_targets: tuple[str, ...] = ()


class Gpu(Part):
    """One board in its slot; ``pci_bus_id`` as NVML prints it."""

    index: int
    model: str
    uuid: str
    minor: int
    serial: str | None
    module_id: int | None
    pdi: int
    pci_bus_id: str
    pcie_root: str
    pcie_switch: str | None
    sysfs_numa_node: int
    nvml_numa_node_id: int | None
    cpu_affinity: str
    memory_affinity: str | None = None
    nvlink: GpuLinks = GpuLinks()
    platform_info: PlatformInfo | None = None


class NvSwitch(Part):
    name: str
    pci_bus_id: str
    device_id: int
    generation: int
    pcie_root: str


class NvLinkFabric(Part):
    kind: Literal["nvswitch", "nvswitch-rack", "direct", "none"]
    interconnect: str | None = None
    nvswitches: tuple[NvSwitch, ...] = ()
    nvswitches_on_host: int | None = None
    compute_trays_per_domain: int | None = None
    switch_trays_per_domain: int | None = None
    gpus_per_domain: int | None = None
    link_matrix: tuple[tuple[int, ...], ...] | None = None
    note: str | None = None


class Fabric(Part):
    supported: bool
    state: Named | None = None
    status: Named | None = None
    clique_id: int = 0
    cluster_uuid: str = "00000000-0000-0000-0000-000000000000"
    health_summary: Named | None = None
    health_mask: int = 0


class Topology(Part):
    same_switch: int
    same_root: int
    same_numa: int
    otherwise: int
    nvidia_smi_topo: str


class ConfidentialCompute(Part):
    supported: bool
    cc_feature: int
    dev_tools_mode: int
    environment: int


class Imex(Part):
    required: bool
    channels_major_device: str


class MachineProfile(Part):
    schema_version: Literal[1]
    id: str
    title: str
    machine: Host
    driver: Driver
    numa_nodes: tuple[NumaNode, ...]
    models: dict[str, GpuModel]
    gpus: tuple[Gpu, ...]
    nvlink_fabric: NvLinkFabric
    fabric: Fabric
    topology: Topology
    confidential_compute: ConfidentialCompute
    imex: Imex | None = None
    unified_memory: bool = False

    def model_of(self, slot: int) -> GpuModel:
        return self.models[self.gpus[slot].model]
