"""Counts an agent's durable writes from inside its process, by a library that is loaded before the others.

A tracer would count the same and slow it down tenfold.
"""

import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMES = ("fsync", "fdatasync", "rename", "unlink", "flock")
_LAYOUT = struct.Struct(f"{len(NAMES)}L")


def missing_requirement() -> str | None:
    return None if shutil.which("gcc") else "no gcc in PATH: the counting library is built with it"


@dataclass(frozen=True, slots=True)
class SyscallCounts:
    library: Path
    file: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What an agent must be started with."""
        return {"LD_PRELOAD": str(self.library), "BENCH_SYSCALLS": str(self.file)}

    def read(self) -> Counter[str]:
        return Counter(dict(zip(NAMES, _LAYOUT.unpack(self.file.read_bytes()), strict=True)))


def build(folder: Path) -> SyscallCounts:
    library, file = folder / "syscalls.so", folder / "syscalls"
    source = Path(__file__).with_name("syscalls.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    file.write_bytes(bytes(_LAYOUT.size))
    return SyscallCounts(library, file)
