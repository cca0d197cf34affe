"""Naming, seeing and ending processes: on real ones where that is possible, on a made-up /proc for the rest."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.lease.processes import HostProcesses, ProcessIdentity


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def identity_of(pid: int) -> ProcessIdentity:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ProcessIdentity(pid, int(fields[19]), os.stat("/proc/self/ns/pid").st_ino)


def test_current_is_this_process() -> None:
    assert HostProcesses().current() == identity_of(os.getpid())


def test_a_living_process_is_killed_and_then_gone(child: subprocess.Popen[bytes]) -> None:
    processes, process = HostProcesses(), identity_of(child.pid)
    assert processes.gone(process) is False
    processes.kill(process)
    assert child.wait(10) == -signal.SIGKILL
    assert processes.gone(process) is True


def test_a_zombie_is_gone(child: subprocess.Popen[bytes]) -> None:
    process = identity_of(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert HostProcesses().gone(process) is True


def test_a_pid_that_now_means_another_process_is_not_killed(child: subprocess.Popen[bytes]) -> None:
    processes, former = HostProcesses(), replace(identity_of(child.pid), start_time=1)
    assert processes.gone(former) is True
    processes.kill(former)
    assert child.poll() is None


def test_another_pid_namespace_cant_be_seen_and_isnt_touched(child: subprocess.Popen[bytes]) -> None:
    processes, foreign = HostProcesses(), replace(identity_of(child.pid), pid_namespace=1)
    assert processes.gone(foreign) is None
    processes.kill(foreign)
    assert child.poll() is None


def test_lock_holders_are_those_of_the_file(tmp_path: Path) -> None:
    locked, other = tmp_path / "locked", tmp_path / "other"
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
        with locked.open("w") as file, other.open("w"):
            fcntl.flock(file, kind)
            assert HostProcesses().lock_holders(locked.stat().st_ino) == {os.getpid()}
            assert HostProcesses().lock_holders(other.stat().st_ino) == frozenset()


class FakeProc:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").touch()
        self.namespace = (root / "self/ns/pid").stat().st_ino

    def add(self, pid: int, *, command: str = "python", state: str = "S", start: int = 42, threads: int = 1) -> None:
        folder = self.root / str(pid)
        for thread in range(threads):
            (folder / "task" / str(pid + thread)).mkdir(parents=True)
        fields = [state, *["0"] * 18, str(start), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} ({command}) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


@pytest.mark.parametrize(
    ("command", "state", "threads", "gone"),
    [
        ("python", "S", 1, False),
        ("a) b (c", "R", 1, False),
        ("python", "T", 1, False),
        ("python", "Z", 1, True),
        ("python", "Z", 2, False),
        ("python", "X", 1, True),
    ],
)
def test_states(proc: FakeProc, command: str, state: str, threads: int, gone: bool) -> None:
    """A zombie whose other thread is stuck in the driver still has its files open."""
    proc.add(7, command=command, state=state, threads=threads)
    assert HostProcesses(proc.root).gone(ProcessIdentity(7, 42, proc.namespace)) is gone


def test_waiters_and_other_kinds_of_locks_are_no_holders(proc: FakeProc) -> None:
    (proc.root / "locks").write_text(
        "1: FLOCK  ADVISORY  READ 10 fe:00:99 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 11 fe:00:99 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 12 fe:00:99 0 EOF\n"
        "3: FLOCK  ADVISORY  WRITE 13 fe:00:199 0 EOF\n"
        "4: OFDLCK ADVISORY  WRITE -1 fe:00:99 0 EOF\n"
    )
    assert HostProcesses(proc.root).lock_holders(99) == {10}


def test_unreadable_locks_show_nobody(proc: FakeProc) -> None:
    assert HostProcesses(proc.root).lock_holders(99) == frozenset()


def test_a_process_that_ends_before_the_kill_is_no_error(proc: FakeProc) -> None:
    proc.add(7)

    def kill(pid: int, number: int) -> None:
        raise ProcessLookupError

    HostProcesses(proc.root, kill).kill(ProcessIdentity(7, 42, proc.namespace))


@pytest.mark.parametrize("unreadable", ["stat", "task"])
def test_what_cant_be_read_now_is_unknown(tmp_path: Path, unreadable: str) -> None:
    """Files in place of folders and the reverse stand for any other error, such as too many open files."""
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    (tmp_path / "7").mkdir()
    if unreadable == "stat":
        (tmp_path / "7/stat").mkdir()
    else:
        (tmp_path / "7/stat").write_text("7 (agent) Z " + "0 " * 18 + "5 0\n")
        (tmp_path / "7/task").touch()
    namespace = (tmp_path / "self/ns/pid").stat().st_ino
    assert HostProcesses(tmp_path).gone(ProcessIdentity(7, 5, namespace)) is None
