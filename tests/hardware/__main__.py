"""`python -m tests.hardware`: the claim route on a real GPU, without a cluster, in under a minute; prints a report.

Root is needed for the container part, and a machine on which no kubelet runs. Exit code: 0 when nothing failed, 1 when
something did, 2 when there is no GPU to try it on.
"""

import argparse
import asyncio
import shutil
import sys
from pathlib import Path

from gpuclaim.demo.stage import temporary_folder
from kubeletplugin.nvml.library import find_library
from tests.hardware import checks, runtime
from tests.hardware.node import HardwareNode


def missing_requirement(node: HardwareNode) -> str | None:
    """Why nothing can be tried here, or None."""
    settings = node.settings
    search = find_library([settings.host_root / root.lstrip("/") for root in settings.driver_roots])
    if search.path is None:
        return search.explain()
    try:
        used = any((root / "kubepods").exists() for root in runtime.hierarchies())
    except OSError:
        used = False
    return "a kubelet runs here, or has run: there is a cgroup kubepods" if used else None


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hardware", description=__doc__)
    parser.add_argument("--host-root", type=Path, default=Path("/"))
    parser.add_argument("--driver-root", action="append", default=[], help="where the driver may be")
    parser.add_argument("--runtime", choices=runtime.RUNTIMES, default="", help="default: the first that is installed")
    parser.add_argument("--simulated", action="store_true", help="no device behind the driver's files: no CUDA")
    options = parser.parse_args(words)
    folder = temporary_folder()
    try:
        node = HardwareNode(folder, options.host_root, options.driver_root)
        if reason := missing_requirement(node):
            sys.stdout.write(f"hardware: nothing was tried: {reason}\n")
            return 2
        made = checks.Checks(node, options.simulated, options.runtime)
        asyncio.run(made.run())
        sys.stdout.write(f"{checks.render(made.outcomes)}\n")
        failed = any(outcome.result == "FAILED" for outcome in made.outcomes)
        if failed and node.log.exists():
            sys.stdout.write(f"the agent's log ends so:\n{node.log.read_text()[-3000:]}\n")
        return int(failed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
