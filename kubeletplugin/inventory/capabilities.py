"""MIG capabilities: the device nodes that give access to one partition and to no other.

The driver lists each partition's two (its GPU instance's and its compute instance's) as files below
``<proc>/driver/nvidia/capabilities``, with the minor number, which is the node's name too. All have one major.
"""

import re
from dataclasses import dataclass
from pathlib import Path

MAJOR_NAME = "nvidia-caps"
"""In /proc/devices."""

FOLDER = "nvidia-caps"
"""Below /dev."""

_FIELD = re.compile(r"^(\w+):[ \t]*(\d+)[ \t]*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Capability:
    """``modify`` is the driver's word whether user space may make and change the node."""

    minor: int
    mode: int
    modify: bool = True

    @property
    def node(self) -> str:
        """Path below /dev."""
        return f"{FOLDER}/nvidia-cap{self.minor}"


def read(access: Path) -> Capability:
    """Raises OSError when there is no such file, ValueError when it doesn't say what it must."""
    facts = {key: int(value) for key, value in _FIELD.findall(access.read_text(encoding="ascii"))}
    try:
        return Capability(facts["DeviceFileMinor"], facts["DeviceFileMode"], bool(facts.get("DeviceFileModify", 1)))
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from error


def of_partition(proc: Path, gpu_minor: int, gpu_instance: int, compute_instance: int) -> tuple[Path, Path]:
    """The partition's files, as the driver lists them while it exists."""
    instance = _root(proc) / f"gpu{gpu_minor}" / "mig" / f"gi{gpu_instance}"
    return instance / "access", instance / f"ci{compute_instance}" / "access"


def of_all_partitions(proc: Path) -> list[Path]:
    found = (*_root(proc).glob("gpu*/mig/gi*/access"), *_root(proc).glob("gpu*/mig/gi*/ci*/access"))
    return sorted(found)


def _root(proc: Path) -> Path:
    return proc / "driver" / "nvidia" / "capabilities"
