"""What /proc tells of a process: memory, CPU time, wake-ups. All figures are totals since its start."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """``wakeups`` are voluntary context switches of the threads that run now: each is a sleep that ended."""

    rss_mb: float
    anonymous_mb: float
    cpu_ms: float
    wakeups: int
    threads: int


def usage(pid: int) -> Usage:
    fields = _status(Path(f"/proc/{pid}"))
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tasks = [_status(path) for path in Path(f"/proc/{pid}/task").iterdir()]
    return Usage(
        rss_mb=int(fields["VmRSS"].split()[0]) / 1024,
        anonymous_mb=int(fields["RssAnon"].split()[0]) / 1024,
        cpu_ms=(int(stat[11]) + int(stat[12])) * _TICK,
        wakeups=sum(int(task["voluntary_ctxt_switches"]) for task in tasks),
        threads=len(tasks),
    )


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
