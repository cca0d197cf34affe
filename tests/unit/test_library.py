"""The search for libnvidia-ml over driver roots, on trees of files."""

import os
from pathlib import Path
from typing import Literal

import pytest

from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.library import (
    FOLDERS,
    LIBRARY_NAME,
    ElfIdent,
    LibraryError,
    LibrarySearch,
    find_library,
    own_ident,
    resolve_in_root,
)

X86_64, AARCH64, I386 = ElfIdent(2, 1, 62), ElfIdent(2, 1, 183), ElfIdent(1, 1, 3)
S390X = ElfIdent(2, 2, 22)
LIB = "usr/lib/x86_64-linux-gnu"


def elf(ident: ElfIdent = X86_64, kind: int = 3) -> bytes:
    order: Literal["big", "little"] = "big" if ident.data == 2 else "little"
    start = b"\x7fELF" + bytes([ident.elf_class, ident.data, 1]) + bytes(9)
    return start + kind.to_bytes(2, order) + ident.machine.to_bytes(2, order) + bytes(44)


def put(root: Path, relative: str, content: bytes | str | None = None) -> Path:
    """A file with ``content``, or a link to it when it is text."""
    path = root / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(elf() if content is None else content)
    return path


def find(*roots: Path) -> LibrarySearch:
    return find_library(roots, loader=X86_64)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_is_searched(folder: str, tmp_path: Path) -> None:
    library = put(tmp_path, f"{folder}/{LIBRARY_NAME}")
    assert find(tmp_path) == LibrarySearch(library, tmp_path)


def test_the_usual_chain_of_links(tmp_path: Path) -> None:
    """Debian's: .so.1 -> /etc/alternatives -> the versioned file, absolute as seen inside the root."""
    library = put(tmp_path, f"{LIB}/nvidia/current/libnvidia-ml.so.580.105.08")
    put(tmp_path, f"{LIB}/nvidia/current/{LIBRARY_NAME}", "libnvidia-ml.so.580.105.08")
    put(tmp_path, "etc/alternatives/nvidia--libnvidia-ml.so.1", f"/{LIB}/nvidia/current/{LIBRARY_NAME}")
    put(tmp_path, f"{LIB}/{LIBRARY_NAME}", "/etc/alternatives/nvidia--libnvidia-ml.so.1")
    assert find(tmp_path) == LibrarySearch(library, tmp_path, "580.105.08")


def test_a_linked_folder(tmp_path: Path) -> None:
    """A merged /usr, and NixOS, whose folder of libraries is a link into its store."""
    library = put(tmp_path, "nix/store/abc-nvidia/lib/libnvidia-ml.so.595.91.07")
    put(tmp_path, f"nix/store/abc-nvidia/lib/{LIBRARY_NAME}", "libnvidia-ml.so.595.91.07")
    put(tmp_path, "run/opengl-driver", "/nix/store/abc-nvidia")
    assert find(tmp_path) == LibrarySearch(library, tmp_path, "595.91.07")


def test_only_the_versioned_file(tmp_path: Path) -> None:
    """ldconfig hasn't run in the root: the newest of the versioned files, by number and not by spelling."""
    put(tmp_path, f"{LIB}/libnvidia-ml.so.580.95.05")
    newest = put(tmp_path, f"{LIB}/libnvidia-ml.so.580.105.08")
    put(tmp_path, f"{LIB}/libnvidia-ml.so.580.105.08.bak")
    put(tmp_path, f"{LIB}/libnvidia-ml.so")
    assert find(tmp_path) == LibrarySearch(newest, tmp_path, "580.105.08")


def test_roots_are_tried_in_order(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("absent", "empty", "bare", "full", "later")]
    roots[1].mkdir()
    put(roots[2], "etc/os-release", b"ID=talos\n")
    library = put(roots[3], f"usr/local/glibc/usr/lib/{LIBRARY_NAME}")
    put(roots[4], f"{LIB}/{LIBRARY_NAME}")
    found = find(*roots)
    assert (found.path, found.root) == (library, roots[3])
    assert found.misses == (
        (roots[0], "can't be read as a driver root (No such file or directory)"),
        (roots[1], "is empty: not mounted yet, or the driver isn't installed"),
        (roots[2], f"holds no {LIBRARY_NAME} in any of the {len(FOLDERS)} usual folders"),
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty: the driver's files weren't installed or mounted completely"),
        (b"#!/bin/sh\nexit 0 # no library\n", "isn't an ELF file"),
        (b"\x7fELF", "isn't an ELF file"),
        (elf(I386), "is a 32-bit library, this process is 64-bit"),
        (elf(AARCH64), "is for another machine (ELF machine 183, this process is 62)"),
        (elf(S390X), "is for another machine (ELF machine 22, this process is 62)"),
        (elf(kind=1), "isn't a shared library (ELF type 1)"),
        (f"{LIBRARY_NAME}", "has too many levels of symbolic links"),
        ("/opt/elsewhere/libnvidia-ml.so.1", "is a symbolic link to {root}/opt, which doesn't exist"),
        ("../../../../../../etc", "isn't a regular file"),
        (f"../{LIBRARY_NAME}/x", "Not a directory"),
    ],
)
def test_a_file_that_cannot_be_loaded(content: bytes | str, reason: str, tmp_path: Path) -> None:
    """It is passed over with its reason, and the search goes on."""
    root = tmp_path / "root"
    bad = put(root, f"{LIB}/{LIBRARY_NAME}", content)
    (root / "etc").mkdir()
    put(root, f"usr/lib/{LIBRARY_NAME}", elf(I386))
    good = put(root, f"usr/lib/wsl/lib/{LIBRARY_NAME}")
    found = find(root)
    assert found.path == good
    assert found.misses[0] == (bad, reason.format(root=root))


def test_links_never_lead_out_of_the_root(tmp_path: Path) -> None:
    outside = put(tmp_path, f"outside/{LIBRARY_NAME}")
    root = tmp_path / "root"
    put(root, f"usr/lib64/{LIBRARY_NAME}", str(outside))
    put(root, f"lib64/{LIBRARY_NAME}", f"../../outside/{LIBRARY_NAME}")
    found = find(root)
    assert found.path is None
    assert [path for path, _ in found.misses] == [root / "usr/lib64" / LIBRARY_NAME, root / "lib64" / LIBRARY_NAME]


def test_a_root_that_is_a_link(tmp_path: Path) -> None:
    library = put(tmp_path, f"real/{LIB}/{LIBRARY_NAME}")
    (tmp_path / "link").symlink_to("real")
    found = find(tmp_path / "link").path
    assert found is not None
    assert found.samefile(library)


def test_a_folder_with_two_names_is_looked_at_once(tmp_path: Path) -> None:
    bad = put(tmp_path, f"usr/lib64/{LIBRARY_NAME}", b"")
    put(tmp_path, "lib64", "usr/lib64")
    assert [path for path, _ in find(tmp_path).misses] == [bad]


def test_dots_are_clamped_at_the_root(tmp_path: Path) -> None:
    put(tmp_path, "a/file")
    put(tmp_path, "b/link", "../../../../a/./file")
    assert resolve_in_root(tmp_path, Path("b/link")) == tmp_path / "a/file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    put(tmp_path, f"{LIB}/{LIBRARY_NAME}").chmod(0)
    assert find(tmp_path).misses[0][1] == "Permission denied"


def test_one_line_says_it_all(tmp_path: Path) -> None:
    put(tmp_path, f"{LIB}/{LIBRARY_NAME}", b"")
    search = find(tmp_path, tmp_path / "absent")
    assert search.explain() == (
        f"find {LIBRARY_NAME}: not found under any driver root ("
        f"{tmp_path}/{LIB}/{LIBRARY_NAME}: is empty: the driver's files weren't installed or mounted completely; "
        f"{tmp_path}/absent: can't be read as a driver root (No such file or directory))"
    )
    with pytest.raises(LibraryError) as failure:
        search.require()
    assert failure.value.code == NvmlCode.LIBRARY_NOT_FOUND
    assert str(failure.value) == search.explain()
    library = put(tmp_path, f"usr/lib/{LIBRARY_NAME}")
    assert find(tmp_path).explain().startswith(f"found {library} under driver root {tmp_path} (passed over ")
    assert find(tmp_path).require() == library
    assert "no driver root given" in find().explain()


def test_this_process_is_the_loader() -> None:
    """The interpreter's own C library, which it has loaded, passes for it."""
    ident = own_ident()
    assert ident.elf_class == (2 if os.uname().machine.endswith("64") else 1)
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(Path(line.split()[-1]) for line in maps if "libc.so" in line or "libc-" in line)
    assert find_library([libc.parent], name=libc.name).path is not None
