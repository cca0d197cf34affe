"""SONAME, word size and machine come from the file's own tables; odd files give less, never an error."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kubeletplugin.cdi.elf import MACHINE_AARCH64, MACHINE_X86_64, ElfFacts, read_elf
from tests.unit.cdi.machine import elf_library

GOOD = elf_library("libcuda.so.1")


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (GOOD, ElfFacts(64, MACHINE_X86_64, "libcuda.so.1")),
        (elf_library("libcuda.so.1", machine=MACHINE_AARCH64), ElfFacts(64, MACHINE_AARCH64, "libcuda.so.1")),
        (elf_library("libcuda.so.1", bits=32, machine=3), ElfFacts(32, 3, "libcuda.so.1")),
        (elf_library(""), ElfFacts(64, MACHINE_X86_64, "")),
        (elf_library("../../etc/passwd"), ElfFacts(64, MACHINE_X86_64, "")),
        (b"", ElfFacts()),
        (b"\x7fELF", ElfFacts()),
        (b"#!/bin/sh\nexit 0 # longer than a header", ElfFacts()),
        (b"\x7fELF\x07\x01" + bytes(60), ElfFacts()),
        (GOOD[:64], ElfFacts(64, MACHINE_X86_64, "")),
        (GOOD[:150], ElfFacts(64, MACHINE_X86_64, "")),
        (GOOD[:32] + b"\xff" * 8 + GOOD[40:], ElfFacts(64, MACHINE_X86_64, "")),
        (GOOD.replace(b"libcuda", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9"), ElfFacts(64, MACHINE_X86_64, "")),
    ],
)
def test_read(tmp_path: Path, content: bytes, facts: ElfFacts) -> None:
    file = tmp_path / "lib"
    file.write_bytes(content)
    assert read_elf(file) == facts


def test_no_byte_of_the_file_can_break_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "lib"
    for position in range(len(GOOD)):
        file.write_bytes(GOOD[:position] + b"\xff" + GOOD[position + 1 :])
        read_elf(file)


def test_a_library_of_the_real_linker(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    source, library = tmp_path / "a.c", tmp_path / "liba.so.5.1"
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,liba.so.5", "-o", library, source], check=True)
    facts = read_elf(library)
    assert (facts.bits, facts.soname) == (64, "liba.so.5")
