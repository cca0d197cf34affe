"""What the active instance does about the others: notice when one ends, remove what a dead one left.

The end of any instance's health stream makes the kubelet forget all values of the driver, so everything is sent
again: at once, and a moment later, since the kubelet notices that end by itself and maybe after us. A socket is
removed when nobody listened on it in two looks.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.clock import Clock
from kubeletplugin.dra.instance import Peers
from kubeletplugin.dra.sockets import (
    SocketPaths,
    answers,
    peer_dra_sockets,
    peer_registration_sockets,
    status_sockets,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HousekeepingTiming:
    """Seconds."""

    look: float = 5.0
    settle: float = 1.0


class Housekeeper:
    """Works from ``start`` to ``stop``."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        peers: Peers,
        resend: Callable[[], None],
        *,
        clock: Clock,
        timing: HousekeepingTiming | None = None,
    ) -> None:
        self._driver = driver
        self._paths = paths
        self._peers = peers
        self._resend = resend
        self._clock = clock
        self._timing = timing or HousekeepingTiming()
        self._watches: dict[Path, asyncio.Task[None]] = {}
        self._suspects: set[Path] = set()
        self._mute: set[Path] = set()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name="peers")

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    async def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:
                log.exception("look for other instances")
            await self._clock.sleep(self._timing.look)

    def look(self) -> None:
        registry, plugin = self._paths.registration.parent, self._paths.dra.parent
        dra_sockets = peer_dra_sockets(plugin, self._paths)
        registrations = peer_registration_sockets(registry, self._driver, self._paths, dra_sockets)
        found = (*registrations, *dra_sockets, *status_sockets(plugin))
        silent = {path for path in found if not answers(path)}
        for path in sorted(silent & self._suspects):
            remove(path)
        self._suspects = silent
        for path in dra_sockets:
            if path not in silent and path not in self._watches:
                self._watches[path] = asyncio.create_task(self._watch(path), name=f"watch {path.name}")

    async def _watch(self, path: Path) -> None:
        """The next look watches it again, should it be there still."""
        try:
            said_so = await self._peers.until_gone(str(path))
            self._tell_gone(path, ended=said_so or not answers(path))
            self._resend()
            await self._clock.sleep(self._timing.settle)
            self._resend()
        except Exception:
            log.exception("watch another instance", extra={"socket": str(path)})
        if self._watches.get(path) is asyncio.current_task():
            del self._watches[path]

    def _tell_gone(self, path: Path, *, ended: bool) -> None:
        """Of one that hangs once: each further watch of it fails as well."""
        if ended:
            self._mute.discard(path)
            log.info("another instance has ended", extra={"socket": str(path)})
        elif path not in self._mute:
            self._mute.add(path)
            log.warning(
                "another instance doesn't answer, though its process is there; end it if that lasts",
                extra={"socket": str(path)},
            )


def remove(path: Path) -> None:
    log.info("remove the socket of an instance that is gone", extra={"socket": str(path)})
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.error(
            "remove the socket of an instance that is gone; will be tried again",
            extra={"socket": str(path), "error": str(error)},
        )
