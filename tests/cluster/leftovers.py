"""What the agent may not leave behind once no claim is prepared: looked for in its folders, not asked of the agent."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.app.active import CDI_PREFIX, LEDGER_FILE
from kubeletplugin.dra.sockets import answers, is_socket, plugin_dir, registry_dir
from kubeletplugin.ledger.files import read_snapshot

SECONDS = 45.0
"""A drain ends at its next look, a dead instance's socket is removed at the second one, a sweep comes after 30 s."""

PERMANENT = {"ledger.db", "ledger.db-wal", "ledger.db-shm", "lease", "simulated-node.json", "simulated-node.json.lock"}


@dataclass(frozen=True, slots=True)
class Places:
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi: Path = Path("/var/run/cdi")


def leftovers(places: Places | None = None) -> list[str]:
    """As found now, with every pod that used a claim of ours gone."""
    places = places or Places()
    plugin = plugin_dir(places.kubelet_root, DRIVER_NAME)
    found = [*_cdi_files(places.cdi), *_rows(plugin / LEDGER_FILE), *_files(plugin)]
    registry = registry_dir(places.kubelet_root)
    return [*found, *_dead_sockets(plugin), *_dead_sockets(registry)]


def wait_for_none(places: Places | None = None, seconds: float = SECONDS) -> list[str]:
    """What is there still after ``seconds``; returns at the first look that finds nothing."""
    end = time.monotonic() + seconds
    while (found := leftovers(places)) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def _cdi_files(folder: Path) -> Iterator[str]:
    driver = [path.name for path in folder.glob(f"{CDI_PREFIX}driver*.json")]
    if len(driver) > 1:
        yield f"CDI: {len(driver)} driver specs: {sorted(driver)}"
    for path in sorted(folder.glob(f"{CDI_PREFIX}*")):
        if path.name not in driver:
            yield f"CDI: {path}"


def _rows(ledger: Path) -> Iterator[str]:
    if not ledger.exists():
        return
    kept = read_snapshot(ledger)
    yield from (f"ledger: claim {row.namespace}/{row.name} ({row.uid})" for row in kept.claims)
    yield from (f"ledger: hold of {row.device.name} by {row.holder.id}: {row.state}" for row in kept.holds)
    yield from (f"ledger: intent {row.kind} for {row.target}" for row in kept.intents)


def _files(plugin: Path) -> Iterator[str]:
    for path in sorted(plugin.glob("*")):
        if path.is_file() and path.name not in PERMANENT:
            yield f"file: {path}"


def _dead_sockets(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.sock")):
        if is_socket(path) and not answers(path):
            yield f"socket: {path}"
