"""What each import of the agent costs in memory: `python -m tests.bench.imports`, and a part of the bench's table.

In a fresh interpreter every module's execution is measured by the resident memory that it adds (Rss of
smaps_rollup, so mapped libraries count as they do for the kubelet's eviction), less what the modules that it imports
add. A distribution's modules are summed up under its name.
"""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Figures, Row

AGENT = "kubeletplugin.app.agent, kubeletplugin.app.main"
NAMED_MB = 2.0
"""What costs more is named."""

# Runs in the measured interpreter before anything else is imported.
_PROBE = """
import sys, json, _frozen_importlib as bootstrap, _frozen_importlib_external as external
def resident(rollup=open("/proc/self/smaps_rollup", "rb", buffering=0)):
    rollup.seek(0)
    return int(rollup.read().split(b"Rss:", 1)[1].split(None, 1)[0])
begun, stack, own = resident(), [0], {}
def measured(load):
    def loaded(spec, *rest):
        before = resident()
        stack.append(0)
        try:
            return load(spec, *rest)
        finally:
            added = resident() - before
            own[spec.name] = own.get(spec.name, 0) + added - stack.pop()
            stack[-1] += added
    return loaded
bootstrap._load_unlocked = measured(bootstrap._load_unlocked)
import IMPORTED
print(json.dumps({"begun": begun, "ended": resident(), "own": own}))
"""


def measure(imported: str = AGENT) -> tuple[float, float, dict[str, float]]:
    """MB of a bare interpreter, MB after the imports, and MB that each distribution's modules added by themselves."""
    command = [sys.executable, "-c", _PROBE.replace("IMPORTED", imported)]
    # Twice: the first one may have to compile what it imports, which costs memory of its own.
    for _ in range(2):
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(answer.stdout)
    by_name: dict[str, float] = defaultdict(float)
    for module, kilobytes in found["own"].items():
        by_name[_shown(module)] += kilobytes / 1024
    return found["begun"] / 1024, found["ended"] / 1024, dict(by_name)


def _shown(module: str) -> str:
    """Our own packages and the big libraries by their second level too."""
    parts = module.split(".")
    if parts[0] in ("kubernetes", "kubeletplugin", "google"):
        return ".".join(parts[:2])
    return parts[0]


def section() -> tuple[str, Sequence[Row], Figures]:
    """Names what costs more than NAMED_MB."""
    begun, ended, costs = measure()
    named = {name: cost for name, cost in sorted(costs.items(), key=lambda item: -item[1]) if cost >= NAMED_MB}
    rows = [
        Row("import", "resident after the agent's imports, MB", "", 71),
        Row("import bare", "  the interpreter alone"),
        *(Row(f"import {name}", f"  {name}") for name in named),
        Row("import others", f"  others, each below {NAMED_MB:g}"),
    ]
    others = ended - begun - sum(named.values())
    figures = {"import": ended, "import bare": begun, "import others": others}
    figures |= {f"import {name}": cost for name, cost in named.items()}
    return "imports", rows, {key: f"{cost:.1f}" for key, cost in figures.items()}


if __name__ == "__main__":
    begun, ended, costs = measure(*sys.argv[1:2])
    sys.stdout.write(f"{Path(sys.executable).name}: {begun:.1f} MB bare, {ended:.1f} MB after importing\n")
    for name, megabytes in sorted(costs.items(), key=lambda item: -item[1]):
        if megabytes >= 0.1:
            sys.stdout.write(f"{megabytes:6.1f}  {name}\n")
