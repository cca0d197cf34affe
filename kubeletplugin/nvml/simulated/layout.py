"""MIG layouts: what partitions a simulated machine has from the start, for nodes with static MIG.

As a flag, ``0=1g.10gb,3g.40gb;1=7g.80gb`` or one GPU a flag; ``all=`` means every GPU that can do MIG and isn't named
itself; ``2=`` means MIG on and empty; ``1g.10gb:6`` asks for a placement start, written as in ``nvidia-smi mig -cgi``.
As a file, the same in YAML::

    0: [1g.10gb, {profile: 3g.40gb, start: 0}]
    all: []

Profiles are placed in the given order where the driver would put them; where that leads nowhere, any arrangement that
holds them all is taken, since the layout says what there is, not how it came about.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.api import Placement
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.simulated import mig
from kubeletplugin.nvml.simulated.profile import nearest
from kubeletplugin.nvml.simulated.schema import InstanceProfileEntry, MachineProfile, MigSpec
from kubeletplugin.nvml.simulated.state import GpuInstanceState, GpuState, NodeState


class LayoutError(FatalError):
    """A MIG layout that can't be read or that the machine can't have."""


@dataclass(frozen=True, slots=True)
class Partition:
    profile: str
    start: int | None = None

    def __str__(self) -> str:
        return self.profile if self.start is None else f"{self.profile}:{self.start}"


MigLayout = Mapping[int | Literal["all"], tuple[Partition, ...]]


def parse_mig_flag(values: str | Sequence[str]) -> MigLayout:
    """The layout of one or more ``--mig`` flags. Raises LayoutError."""
    layout: dict[int | Literal["all"], tuple[Partition, ...]] = {}
    for value in [values] if isinstance(values, str) else values:
        for part in filter(None, (piece.strip() for piece in value.split(";"))):
            key, equals, listed = part.partition("=")
            where = f"read MIG layout {part!r}"
            if not equals:
                raise LayoutError(f"{where}: want GPU=PROFILE,PROFILE, for example 0=1g.10gb,3g.40gb")
            gpu = _gpu_key(key.strip(), where)
            if gpu in layout:
                raise LayoutError(f"{where}: GPU {gpu} is given twice")
            layout[gpu] = tuple(_partition(name.strip(), where) for name in listed.split(",") if name.strip())
    return layout


def load_layout(path: Path) -> MigLayout:
    """The layout in a YAML file. Raises LayoutError."""
    where = f"read MIG layout {path}"
    try:
        document = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except OSError as e:
        raise LayoutError(f"{where}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise LayoutError(f"{where}: {' '.join(str(e).split())}") from e
    if not isinstance(document, dict):
        raise LayoutError(f"{where}: want a map of GPU index to a list of profiles")
    return {
        _gpu_key(str(key), where): tuple(_file_partition(item, f"{where}: GPU {key}") for item in _listed(value, where))
        for key, value in document.items()
    }


def apply_layout(state: NodeState, profile: MachineProfile, layout: MigLayout) -> None:
    """Give the GPUs that ``layout`` names exactly these partitions, each with one full-size compute instance, and
    turn their MIG mode on. Raises LayoutError; ``state`` is then not to be written."""
    for slot, partitions in _by_slot(profile, layout).items():
        gpu, spec = state.gpus[slot], profile.model_of(slot).mig
        entries = [_entry(spec, partition, slot) for partition in partitions]
        gpu.processes = []
        gpu.gpu_instances = []
        gpu.mig_enabled = gpu.mig_pending = True
        arranged = _arrange(gpu, spec, list(zip(partitions, entries, strict=True)))
        if arranged is None:
            wanted = ", ".join(str(partition) for partition in partitions)
            raise LayoutError(f"lay out GPU {slot} as {wanted}: {_no_room(gpu, spec, partitions, entries)}")
        gpu.gpu_instances = []
        for entry, start in arranged:
            instance = mig.create_gpu_instance(
                gpu, spec, entry.profile.id, Placement(start, entry.profile.placement_size)
            )
            mig.create_compute_instance(gpu, spec, instance.id, entry.full_compute_profile.id)


def _by_slot(profile: MachineProfile, layout: MigLayout) -> dict[int, tuple[Partition, ...]]:
    found: dict[int, tuple[Partition, ...]] = {}
    for key, partitions in layout.items():
        if key == "all":
            continue
        if key not in range(len(profile.gpus)):
            raise LayoutError(f"lay out GPU {key}: machine {profile.id} has GPUs 0 to {len(profile.gpus) - 1}")
        if not profile.model_of(key).mig.capable:
            raise LayoutError(f"lay out GPU {key}: {profile.model_of(key).name} can't do MIG")
        found[key] = partitions
    if "all" in layout:
        capable = [gpu.index for gpu in profile.gpus if profile.model_of(gpu.index).mig.capable]
        if not capable:
            raise LayoutError(f"lay out all GPUs: machine {profile.id} has none that can do MIG")
        for slot in capable:
            found.setdefault(slot, layout["all"])
    return found


def _entry(spec: MigSpec, partition: Partition, slot: int) -> InstanceProfileEntry:
    entry = spec.named(partition.profile)
    names = tuple(other.profile.name for other in spec.gpu_instance_profiles)
    if entry is None:
        raise LayoutError(
            f"lay out GPU {slot}: no MIG profile {partition.profile!r}{nearest(partition.profile, names)}; "
            f"it has {', '.join(names)}"
        )
    starts = entry.profile.placement_starts
    if partition.start is not None and partition.start not in starts:
        raise LayoutError(
            f"lay out GPU {slot}: {partition.profile} can't start at {partition.start}; "
            f"it can at {', '.join(map(str, starts))}"
        )
    return entry


Wanted = list[tuple[Partition, InstanceProfileEntry]]


def _arrange(gpu: GpuState, spec: MigSpec, wanted: Wanted) -> list[tuple[InstanceProfileEntry, int]] | None:
    """Starts for all of ``wanted`` beside what ``gpu`` has, the driver's own choice first; None when there are none."""
    if not wanted:
        return []
    (partition, entry), rest = wanted[0], wanted[1:]
    for start in mig.free_starts(gpu, spec, entry):
        if partition.start not in (None, start):
            continue
        trial = gpu.model_copy(update={"gpu_instances": list(gpu.gpu_instances)})
        mig.create_gpu_instance(trial, spec, entry.profile.id, Placement(start, entry.profile.placement_size))
        arranged = _arrange(trial, spec, rest)
        if arranged is not None:
            return [(entry, start), *arranged]
    return None


def _no_room(
    gpu: GpuState, spec: MigSpec, partitions: Sequence[Partition], entries: Sequence[InstanceProfileEntry]
) -> str:
    """Which of the profiles is the first without room, and what is in its way."""
    placed: list[GpuInstanceState] = gpu.gpu_instances
    for partition, entry in zip(partitions, entries, strict=True):
        placement = None if partition.start is None else Placement(partition.start, entry.profile.placement_size)
        try:
            mig.create_gpu_instance(gpu, spec, entry.profile.id, placement)
        except NvmlError:
            beside = ", ".join(f"{_name(spec, other)}:{other.start}" for other in placed)
            return f"no free placement for {partition} beside {beside or 'nothing'}"
    return "no arrangement holds them all"


def _name(spec: MigSpec, instance: GpuInstanceState) -> str:
    entry = spec.entry(instance.profile_id)
    return entry.profile.name if entry is not None else str(instance.profile_id)


def _gpu_key(text: str, where: str) -> int | Literal["all"]:
    if text == "all":
        return "all"
    if not text.isdecimal():
        raise LayoutError(f"{where}: {text!r} is no GPU; give an index or all")
    return int(text)


def _partition(text: str, where: str) -> Partition:
    name, colon, start = text.partition(":")
    if colon and not start.isdecimal():
        raise LayoutError(f"{where}: {start!r} is no placement start; want PROFILE:START")
    return Partition(name, int(start) if colon else None)


def _listed(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise LayoutError(f"{where}: want a list of profiles, not {value!r}")
    return value


def _file_partition(item: object, where: str) -> Partition:
    if isinstance(item, str):
        return _partition(item, where)
    if isinstance(item, dict) and set(item) <= {"profile", "start"} and isinstance(item.get("profile"), str):
        start = item.get("start")
        if start is None or type(start) is int:
            return Partition(item["profile"], start)
    raise LayoutError(f"{where}: want a profile's name or {{profile: NAME, start: N}}, not {item!r}")
