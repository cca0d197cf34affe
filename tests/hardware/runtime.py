"""Runs a bundle: by runc or crun where there is one, else in namespaces of its own by `unshare` (enter.py)."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hardware.bundle import Edits, configuration, hide

RUNTIMES = ("runc", "crun", "unshare")
CGROUPS = Path("/sys/fs/cgroup")


def missing_requirement() -> str | None:
    """Why no container can be made here, or None."""
    if os.geteuid() != 0:
        return "not root"
    if not any(map(shutil.which, RUNTIMES)):
        return f"none of {', '.join(RUNTIMES)} is installed"
    if not os.access(next(iter(hierarchies()), CGROUPS), os.W_OK):
        return f"{CGROUPS} isn't writable: a pod's cgroup can't be made"
    return None


def hierarchies() -> list[Path]:
    """Where a cgroup has to be made: one root for cgroup v2, several for v1."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return sorted(path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())


class Containers:
    """Each on an overlay over this machine's root, in ``folder``; all of a pod in one cgroup."""

    def __init__(self, folder: Path, pod_uid: str, runtime: str = "") -> None:
        self.runtime = runtime or next(name for name in RUNTIMES if shutil.which(name))
        self._folder = folder
        self._cgroup = f"/kubepods/pod{pod_uid}"
        self._number = 0

    @contextlib.contextmanager
    def started(self, edits: Edits, command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
        """With its input, output and errors as pipes; ended and removed after."""
        self._number += 1
        name, bundle = f"gpuclaim-hardware-{os.getpid()}-{self._number}", self._folder / f"bundle-{self._number}"
        with _overlay(bundle) as root:
            hide(root, edits)
            config = configuration(edits, root, command, f"{self._cgroup}/{name}")
            (bundle / "config.json").write_text(json.dumps(config, indent=1))
            process = subprocess.Popen(
                self._command(name, bundle),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                yield process
            finally:
                self._end(name, process)

    def output(self, edits: Edits, command: Sequence[str], seconds: float = 20) -> str:
        """RuntimeError with what it said when it fails."""
        with self.started(edits, command) as process:
            out, err = process.communicate(timeout=seconds)
            if process.returncode:
                raise RuntimeError(f"run {' '.join(command)} by {self.runtime}: {(err or out).strip()[-500:]}")
            return out

    def remove_cgroups(self) -> None:
        for root in hierarchies():
            pod = root / self._cgroup.lstrip("/")
            for path in (*sorted(pod.glob("*/")), pod, pod.parent):
                with contextlib.suppress(OSError):
                    path.rmdir()

    def _command(self, name: str, bundle: Path) -> list[str]:
        if self.runtime != "unshare":
            return [self.runtime, "run", "--bundle", str(bundle), name]
        enter = Path(__file__).with_name("enter.py")
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable, str(enter), str(bundle)]

    def _end(self, name: str, process: subprocess.Popen[str]) -> None:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self.runtime != "unshare":
            subprocess.run([self.runtime, "delete", "--force", name], check=False, capture_output=True)


@contextlib.contextmanager
def _overlay(bundle: Path) -> Iterator[Path]:
    """The machine's root, writable; on a tmpfs, since an overlay can't be the upper layer of another."""
    bundle.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "gpuclaim-hardware", bundle], check=True)
    try:
        for name in ("upper", "work", "rootfs"):
            (bundle / name).mkdir()
        options = f"lowerdir=/,upperdir={bundle}/upper,workdir={bundle}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, bundle / "rootfs"], check=True)
        yield bundle / "rootfs"
    finally:
        for path in (bundle / "rootfs", bundle):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            bundle.rmdir()
