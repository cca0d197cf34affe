"""Build the mock with gcc.

A symbol that a driver branch lacks is left out by the linker's version script, so that nvidia-ml-py meets a library
without it, not one that answers FUNCTION_NOT_FOUND.
"""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parent
SONAME = "libnvidia-ml.so.1"


def find_compiler() -> str | None:
    return shutil.which("gcc")


def compile_objects(compiler: str, folder: Path) -> list[Path]:
    """The mock's object files, in ``folder``. Raises CalledProcessError; the compiler says why on stderr."""
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-pthread"]
    sources = sorted(SOURCES.glob("*.c"))
    subprocess.run([compiler, *flags, "-c", *map(str, sources)], cwd=folder, check=True)
    return [folder / source.with_suffix(".o").name for source in sources]


def link(compiler: str, objects: Iterable[Path], library: Path, missing: Iterable[str] = ()) -> None:
    """Write ``library`` without the symbols ``missing``."""
    script = library.with_suffix(".map")
    hidden = "".join(f" {symbol};" for symbol in sorted(missing))
    script.write_text(f"{{ global: nvml*; local:{hidden} *; }};\n")
    flags = ["-shared", "-pthread", f"-Wl,-soname,{SONAME}", "-Wl,--no-undefined", f"-Wl,--version-script={script}"]
    command = [compiler, *flags, *map(str, objects), "-o", str(library)]
    subprocess.run(command, check=True)
