"""Which process is meant by a pid, whether it is gone, and which ones hold a lock: read from /proc.

A pid alone means nothing a second later, so a process is named by pid, start time and pid namespace. What this
process can't see (another pid namespace) is "unknown", never "gone".
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

STAT_STATE = 0
STAT_START_TIME = 19
"""Positions behind the command in /proc/PID/stat, proc(5) fields 3 and 22."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """``start_time`` in clock ticks since boot; ``pid_namespace`` is the namespace's inode."""

    pid: int
    start_time: int
    pid_namespace: int


class HostProcesses:
    """The processes of this pid namespace, which is the host's where the agent may see it."""

    def __init__(self, proc: Path = Path("/proc"), kill: Callable[[int, int], None] = os.kill) -> None:
        self._proc = proc
        self._kill = kill

    def current(self) -> ProcessIdentity:
        pid = os.getpid()
        stat = self._stat(pid)
        if stat is None:
            raise OSError(f"read {self._proc}/{pid}/stat: not there, is /proc mounted?")
        return ProcessIdentity(pid, int(stat[STAT_START_TIME]), self._namespace())

    def gone(self, process: ProcessIdentity) -> bool | None:
        """None: it can't be seen, since it lives in another pid namespace or /proc can't be read now.

        A zombie counts as gone once no thread is left: one stuck in the kernel keeps files, and so locks, open.
        """
        try:
            if process.pid_namespace != self._namespace():
                return None
            stat = self._stat(process.pid)
            if stat is None or int(stat[STAT_START_TIME]) != process.start_time:
                return True
            return stat[STAT_STATE] in ("Z", "X") and self._threads(process.pid) <= 1
        except OSError:
            return None

    def lock_holders(self, inode: int) -> frozenset[int]:
        """Pids that hold a flock on the file, as far as this namespace shows them; none if that can't be read.

        Devices are not compared: overlayfs and btrfs show another one here than stat does.
        """
        try:
            lines = (self._proc / "locks").read_text().splitlines()
        except OSError:
            return frozenset()
        held = (line.split() for line in lines if " -> " not in line)
        return frozenset(
            int(words[4])
            for words in held
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode)
        )

    def kill(self, process: ProcessIdentity) -> None:
        """SIGKILL, if the pid still means that process."""
        if self.gone(process) is False:
            try:
                self._kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def describe(self, process: ProcessIdentity) -> str:
        """For a person: its state, and where in the kernel it is if that is shown."""
        try:
            stat = self._stat(process.pid)
            place = (self._proc / str(process.pid) / "wchan").read_text().strip("\0\n")
        except OSError:
            return f"pid {process.pid}"
        state = stat[STAT_STATE] if stat else "gone"
        return f"pid {process.pid}, state {state}" + (f" in {place}" if place.strip("0") else "")

    def _namespace(self) -> int:
        return (self._proc / "self/ns/pid").stat().st_ino

    def _threads(self, pid: int) -> int:
        try:
            return len(os.listdir(self._proc / str(pid) / "task"))
        except (FileNotFoundError, ProcessLookupError):
            return 0

    def _stat(self, pid: int) -> list[str] | None:
        try:
            text = (self._proc / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return text.rpartition(")")[2].split()
