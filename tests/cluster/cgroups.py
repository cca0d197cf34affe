"""Processes of pods, from their cgroups: what is true whatever API server, kubelet and agent believe."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
QOS = ("", "burstable", "besteffort")
POD = re.compile(r"/pod([0-9a-f-]{36})(?:/|$)")


def processes_of(uid: str) -> set[int]:
    """Pids below the pod's cgroup, in every hierarchy and whatever its QoS class."""
    folders = (root / qos / f"pod{uid}" for root in _roots() for qos in QOS)
    return {pid for folder in folders for _, pid in _below(folder)}


def processes() -> Iterator[tuple[str, int]]:
    """Pod's UID and pid of each process of a pod."""
    for folder, pid in _below(next(iter(_roots()), CGROUPS / "kubepods")):
        match = POD.search(folder)
        if match:
            yield match[1], pid


def _roots() -> list[Path]:
    """One of cgroup v2, else one in each hierarchy of v1; every process is in all of them."""
    whole = CGROUPS / "kubepods"
    return [whole] if whole.exists() else sorted(CGROUPS.glob("*/kubepods"))


def _below(root: Path) -> Iterator[tuple[str, int]]:
    """A folder that goes meanwhile has none."""
    for folder, _, _ in os.walk(root):
        with contextlib.suppress(OSError):
            for pid in Path(folder, "cgroup.procs").read_text().split():
                yield folder, int(pid)
