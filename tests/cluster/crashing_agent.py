"""The agent, stopped whole at a crash point: what becomes of it then is the test's affair.

``python -m tests.cluster.crashing_agent FOLDER FLAGS...``: where FOLDER holds a file ``armed`` with a point's name, the
process renames it to ``reached`` when it gets there and stops itself, all threads, as by SIGSTOP. Flags are those of
``gpuclaim kubeletplugin``. Times that would only make a test wait are shorter, and a slice takes fewer devices, so that
a pool of 8 has two.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kubeletplugin import crashpoints
from kubeletplugin.app.main import main
from kubeletplugin.dra.housekeeping import HousekeepingTiming
from kubeletplugin.dra.takeover import TakeOverTiming
from kubeletplugin.prepare import manager
from kubeletplugin.slices import pool

ARMED, REACHED = "armed", "reached"
DEVICES_PER_SLICE = 5
SECONDS: dict[type, dict[str, float]] = {HousekeepingTiming: {"look": 1.0}, TakeOverTiming: {"yield_bound": 2.0}}
SWEEP_SECONDS = 1.0


def stopping(folder: Path) -> Callable[[str], None]:
    armed = folder / ARMED

    def stop(point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if armed.read_text() == point:
                armed.rename(folder / REACHED)
                # To this thread, which then takes no step further; one to the process may find another thread first.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    return stop


def shorten() -> None:
    for timing, seconds in SECONDS.items():
        names = list(timing.__dataclass_fields__)  # type: ignore[attr-defined]
        defaults = list(timing.__init__.__defaults__ or ())  # type: ignore[misc]
        for name, value in seconds.items():
            defaults[names.index(name)] = value
        timing.__init__.__defaults__ = tuple(defaults)  # type: ignore[misc]
    for module, name, value in (
        (manager, "SWEEP_SECONDS", SWEEP_SECONDS),
        (pool, "MAX_DEVICES_PER_SLICE", DEVICES_PER_SLICE),
    ):
        if not hasattr(module, name):
            raise LookupError(f"shorten {module.__name__}.{name}: it has no such name")
        setattr(module, name, value)


if __name__ == "__main__":
    crashpoints.hook = stopping(Path(sys.argv[1]))
    shorten()
    sys.exit(main(sys.argv[2:]))
