"""`gpuclaim demo` as a process: exit status, an interrupt, a pipe without a locale."""

import os
import signal
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "gpuclaim", "demo", "--machine", "l4x1"]


def environment(folder: Path) -> dict[str, str]:
    """No terminal, no locale, a narrow page."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUCLAIM_", "LC_", "LANG"))}
    return {
        **kept,
        "TMPDIR": str(folder),
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "COLUMNS": "60",
    }


def test_a_narrow_pipe(short_path: Path) -> None:
    ended = subprocess.run(COMMAND, env=environment(short_path), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[-1] == "Everything was as it should be."
    broken = [line for line in lines if len(line) > 60 and " " in line.strip()]
    assert broken == []
    assert list(short_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(short_path: Path) -> None:
    with subprocess.Popen(COMMAND, env=environment(short_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("2. "):
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
        assert process.wait() != 0
    assert list(short_path.iterdir()) == []
