"""Long-running processes that the harness starts, and ends by pid: never anything that it didn't start.

A pid file holds pid and executable, so that a run that was killed leaves something that the next one can end safely.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def until(what: str, seconds: float, check: Callable[[], object], interval: float = 0.1) -> None:
    """Waits for ``check`` to be truthy; TimeoutError says what didn't come."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(interval)


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Starts processes under one folder for pid files and one for logs, in a network namespace."""

    pids: Path
    logs: Path
    prefix: tuple[str, ...] = ()
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> int:
        self.pids.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [*self.prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )
        wanted = os.path.realpath(command[0])
        until(f"exec {wanted}", 5, lambda: _executable(process.pid) == wanted or process.poll() is not None, 0.01)
        (self.pids / name).write_text(f"{process.pid} {wanted}")
        self._children[name] = process
        return process.pid

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def tail(self, name: str, lines: int = 20) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no log)"

    def pid(self, name: str) -> int | None:
        """The pid when the process that we started under this name still runs."""
        try:
            pid, executable = (self.pids / name).read_text().split(" ", 1)
        except (OSError, ValueError):
            return None
        alive = _executable(int(pid)) == executable and _running(int(pid))
        return int(pid) if alive else None

    def stop(self, name: str, seconds: float = 10, *, hard: bool = False) -> None:
        """SIGTERM, then SIGKILL after ``seconds``; ``hard`` is SIGKILL at once. Not running is success."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL if hard else signal.SIGTERM)
            try:
                until(f"end of {name}", seconds, lambda: not _running(pid), 0.05)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                until(f"end of {name}", 10, lambda: not _running(pid), 0.05)
        child = self._children.pop(name, None)
        if child is not None:
            child.wait()
        (self.pids / name).unlink(missing_ok=True)

    def wait(self, name: str, what: str, seconds: float, check: Callable[[], object]) -> None:
        """Waits for ``check``; a process that died meanwhile fails at once, with the end of its log."""

        def alive_and_well() -> object:
            if self.pid(name) is None:
                raise RuntimeError(f"{name} ended:\n{self.tail(name)}")
            return check()

        try:
            until(what, seconds, alive_and_well)
        except TimeoutError as error:
            raise RuntimeError(f"{error}\n{self.tail(name)}") from error
