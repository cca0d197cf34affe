"""Reads the little of an ELF file that placing a library takes: word size, machine, SONAME.

The driver root may be another system's, so nothing from it is run and no loader is asked. What is asked for sits in
the dynamic section (System V gABI, chapter 5). Anything that doesn't follow the format gives fewer answers, never an
error: a library that can't be read here may still be a good one.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

MACHINE_X86_64 = 62
MACHINE_AARCH64 = 183

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_STRTAB, _DT_SONAME = 0, 5, 14
_DYNAMIC_LIMIT = 64 << 10
"""Real sections are a few hundred bytes; a damaged size must not mean minutes."""


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """``bits`` is 64 or 32, 0 for what isn't ELF; ``soname`` is empty where there is none or it can't be read."""

    bits: int = 0
    machine: int = 0
    soname: str = ""


@dataclass(frozen=True, slots=True)
class _Segment:
    type: int
    offset: int
    address: int
    size: int


def read_elf(path: Path) -> ElfFacts:
    """Raises OSError when the file can't be read at all."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return ElfFacts()
        with data:
            if data[:4] != b"\x7fELF" or len(data) < 20 or data[4] not in (1, 2) or data[5] not in (1, 2):
                return ElfFacts()
            bits = 64 if data[4] == 2 else 32
            order = "<" if data[5] == 1 else ">"
            machine = struct.unpack_from(order + "H", data, 18)[0]
            try:
                soname = _soname(data, bits, order)
            except (struct.error, ValueError, OverflowError):
                soname = ""
            return ElfFacts(bits, machine, soname)


def _soname(data: mmap.mmap, bits: int, order: str) -> str:
    segments = _segments(data, bits, order)
    dynamic = next((s for s in segments if s.type == _PT_DYNAMIC), None)
    if dynamic is None:
        return ""
    entry = struct.Struct(order + ("qQ" if bits == 64 else "iI"))
    tags: dict[int, int] = {}
    for offset in range(dynamic.offset, dynamic.offset + min(dynamic.size, _DYNAMIC_LIMIT), entry.size):
        tag, value = entry.unpack_from(data, offset)
        if tag == _DT_NULL:
            break
        tags.setdefault(tag, value)
    if _DT_SONAME not in tags or _DT_STRTAB not in tags:
        return ""
    start = _file_offset(segments, tags[_DT_STRTAB]) + tags[_DT_SONAME]
    end = data.find(b"\0", start)
    name = data[start:end].decode("ascii") if start <= end else ""
    return name if "/" not in name else ""


def _segments(data: mmap.mmap, bits: int, order: str) -> list[_Segment]:
    if bits == 64:
        (table,) = struct.unpack_from(order + "Q", data, 32)
        size, count = struct.unpack_from(order + "HH", data, 54)
    else:
        (table,) = struct.unpack_from(order + "I", data, 28)
        size, count = struct.unpack_from(order + "HH", data, 42)
    segments = []
    for index in range(count):
        at = table + index * size
        if bits == 64:
            kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", data, at)
        else:
            kind, offset, address, _, length = struct.unpack_from(order + "IIIII", data, at)
        segments.append(_Segment(kind, offset, address, length))
    return segments


def _file_offset(segments: list[_Segment], address: int) -> int:
    for segment in segments:
        if segment.type == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    raise ValueError("address in no segment")
