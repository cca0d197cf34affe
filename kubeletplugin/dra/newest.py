"""Has the kubelet call the active instance where the newest one hangs.

The kubelet calls the instance that registered last, for as long as its connection stands, and a stopped process keeps
its connections: every call would run into its deadline, although another instance is active and well. So the active
one asks each younger instance for a sign of life. Where one gives none, several times in a row or because its
heartbeat has stood still already, the active one's own registration socket is made anew, which makes it the newest.

It is done once for an instance that hangs, and never for one that answers: two that live don't take turns. Calls that
the hanging one has keep their connection, and are passed on when it wakes. For the second or two until the kubelet has
registered this instance again its calls go to the one that hangs, as they did before.

An instance that ends while it is the newest first has another one become it: the kubelet goes on calling it until it
has noticed that the registration socket is gone, and then breaks off the calls that are open there.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.clock import Clock
from kubeletplugin.dra.instance import PeerError, Peers
from kubeletplugin.dra.sockets import SocketPaths, answers, bound_at, peer_dra_sockets, registration_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewestTiming:
    """Seconds. An instance hangs when it gave no sign of life ``misses`` times, for ``answer`` each time: one whose
    loop is only busy, or a machine that was paused, misses once. ``hand_over`` is for its calls in flight, the
    kubelet's loop of 1 s, and some more; ``settle`` for the kubelet's new connection."""

    look: float = 2.0
    answer: float = 2.0
    misses: int = 3
    hand_over: float = 10.0
    settle: float = 0.2


Incarnation = tuple[str, int]
"""A registration socket and when it was bound: what the kubelet has registered."""


class NewestKeeper:
    """Works from ``start`` to ``stop``, that is while this instance is active."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        peers: Peers,
        renew: Callable[[], Awaitable[None]],
        *,
        clock: Clock,
        timing: NewestTiming | None = None,
    ) -> None:
        """``renew`` makes this instance the newest."""
        self._driver = driver
        self._paths = paths
        self._peers = peers
        self._renew = renew
        self._clock = clock
        self._timing = timing or NewestTiming()
        self._misses: Counter[Incarnation] = Counter()
        self._passed: set[Incarnation] = set()
        self._loop: asyncio.Task[None] | None = None

    def start(self, hangs: str = "") -> None:
        """``hangs`` is the DRA socket of an instance that is known to hang."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(hangs), name="stay the newest")

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            self._loop = None
        self._misses.clear()

    async def _run(self, hangs: str) -> None:
        while True:
            try:
                await self.look(hangs)
                hangs = ""
            except Exception:
                log.exception("look whether a newer instance hangs")
            await self._clock.sleep(self._timing.look)

    async def look(self, hangs: str = "") -> None:
        """``renew`` is awaited at most once."""
        younger = self._younger()
        asked = [path for path in younger if str(path) != hangs]
        alive = await asyncio.gather(*(self._peers.responds(str(path), self._timing.answer) for path in asked))
        hanging = {path for path in younger if str(path) == hangs}
        for path, answered in zip(asked, alive, strict=True):
            if self._counts(younger[path], answered):
                hanging.add(path)
        if hanging:
            names = ", ".join(sorted(path.name for path in hanging))
            log.warning(
                "a newer instance hangs: register anew, so that the kubelet calls this one", extra={"sockets": names}
            )
            self._passed |= {younger[path] for path in hanging}
            await self._renew()

    async def hand_over(self) -> None:
        """Before this instance ends: has the newest of the others become the one that is called, if this one is."""
        others = self._others()
        own = bound_at(self._paths.registration)
        if own is None or not others or max(made for _, made in others.values()) > own:
            return
        for path in sorted(others, key=lambda path: others[path][1], reverse=True):
            try:
                if await self._peers.register_anew(str(path), self._timing.hand_over):
                    await self._clock.sleep(self._timing.settle)
                    return
            except PeerError as error:
                log.warning("another instance didn't register anew before this one ends", extra={"error": str(error)})

    def _counts(self, incarnation: Incarnation, answered: bool) -> bool:
        """Notes one answer, or none; whether it hangs."""
        if answered:
            del self._misses[incarnation]
            return False
        self._misses[incarnation] += 1
        return self._misses[incarnation] >= self._timing.misses

    def _younger(self) -> dict[Path, Incarnation]:
        """Those that were registered after this instance and weren't passed yet."""
        own = bound_at(self._paths.registration)
        if own is None:
            return {}
        others = self._others()
        return {path: it for path, it in others.items() if it[1] > own and it not in self._passed}

    def _others(self) -> dict[Path, Incarnation]:
        """By their DRA sockets, those with a process behind and a registration socket."""
        registry = self._paths.registration.parent
        found = {}
        for path in peer_dra_sockets(self._paths.dra.parent, self._paths):
            registration = registration_of(registry, self._driver, path)
            made = bound_at(registration) if registration is not None else None
            if made is not None and answers(path):
                found[path] = (str(registration), made)
        return found
