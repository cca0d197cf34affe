"""Which of a node's instances is the active one, seen from one instance (design: "Two agents on one node").

Standby -> activating -> active -> yielding -> standby. An instance asks for the lease for one of four reasons only:
the kubelet has just called it, the kubelet has confirmed its first registration, nobody is active, or the active
one's heartbeat stands still. A call that another instance passed on is no reason, or two instances with a call each
would take the lease from each other for ever (R_YIELD).

Whoever takes over asks the active one to yield first, and goes ahead without an answer after a bound: the lease, not
politeness, keeps the two apart. One transition runs at a time, in a task that no caller's deadline ends.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kubeletplugin import crashpoints
from kubeletplugin.clock import Clock
from kubeletplugin.dra.instance import PeerError, Peers
from kubeletplugin.errors import AgentError, FatalError, NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.record import LeaseRecord
from kubeletplugin.lease.stale import StaleDetector

log = logging.getLogger(__name__)


class ActiveWork(Protocol):
    """All that only the active instance does: ledger, CDI files, slices, labels, sweeps."""

    async def activate(self, epoch: int) -> None:
        """Opens the ledger, rewrites CDI files from it, recovers intents, prepares what the kubelet believes prepared.
        Returns when claims can be served. FatalError ends the process; any other error gives the lease back."""

    async def deactivate(self) -> None:
        """Stops waits at once (their calls end with NotActiveError), finishes effects, closes the ledger. Also called
        after a failed ``activate`` and after the lease was lost; must not raise."""


class State(Enum):
    STANDBY = "standby"
    ACTIVATING = "activating"
    ACTIVE = "active"
    YIELDING = "yielding"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class TakeOverTiming:
    """Seconds. ``look`` is both the heartbeat's period and the standby's; ``yield_bound`` covers the longest effect
    that is finished on yielding; ``retry_after`` keeps an instance that can't work from asking at every call."""

    look: float = 1.0
    yield_bound: float = 10.0
    retry_after: float = 5.0


class TakeOver:
    def __init__(
        self,
        lease: Lease,
        work: ActiveWork,
        peers: Peers,
        stale: StaleDetector,
        *,
        clock: Clock,
        on_active: Callable[[bool], None],
        on_fatal: Callable[[FatalError], None],
        timing: TakeOverTiming | None = None,
    ) -> None:
        self._lease = lease
        self._work = work
        self._peers = peers
        self._stale = stale
        self._clock = clock
        self._on_active = on_active
        self._on_fatal = on_fatal
        self._timing = timing or TakeOverTiming()
        self._state = State.STANDBY
        self._changed = asyncio.Event()
        self._transition = asyncio.Lock()
        self._attempt: asyncio.Task[None] | None = None
        self._was_registered = False
        self._yielding: set[asyncio.Task[bool]] = set()
        self._unresponsive: object = None
        self._not_before = 0.0
        self.failure = ""

    @property
    def state(self) -> State:
        return self._state

    @property
    def active(self) -> bool:
        return self._state is State.ACTIVE

    async def changed(self, state: State) -> None:
        """Returns when ``state`` is over."""
        while self._state is state:
            await self._changed.wait()

    def registered(self) -> None:
        """The kubelet has confirmed a registration, so it calls this instance next. The first one makes it ask for
        the lease; after a later one (a restarted kubelet registers all instances anew) it does if nobody is active."""
        if not self._was_registered:
            self._was_registered = True
            self.ask()

    def ask(self) -> asyncio.Task[None]:
        """Begins to take over, or joins the attempt under way; done when it has succeeded or failed."""
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.create_task(self._take_over(), name="take over")
        return self._attempt

    async def run(self) -> None:
        """The heartbeat of an active instance, the looks of a standby; for ever, whatever goes wrong in one."""
        while True:
            await self._clock.sleep(self._timing.look)
            try:
                await self.look()
            except RecoverableError as error:
                log.error("look at the lease", extra={"error": str(error)})
            except Exception:
                log.exception("look at the lease")

    async def look(self) -> None:
        if self._state is State.ACTIVE:
            await self._beat()
        elif self._state is State.STANDBY and self._was_registered and self._clock.monotonic() >= self._not_before:
            snapshot = self._lease.read()
            if self._stale.look(snapshot.pulse()):
                log.warning("active instance's heartbeat stands still", extra={"instance": snapshot.record.instance})
                self._unresponsive = snapshot.pulse()
                await asyncio.shield(self.ask())
            elif self._lease.is_void(snapshot.record):
                await asyncio.shield(self.ask())

    async def verify(self) -> None:
        """Steps back if the lease is another's by now; for whoever met a NotActiveError."""
        if self._state is State.ACTIVE and self._lease.lost():
            await self._step_back("lost the lease")

    async def give_up(self, asker: str) -> bool:
        """Yields to ``asker``. Returns whether this instance was active, when its effects are finished."""
        task = asyncio.create_task(self._give_up(asker), name="yield")
        self._yielding.add(task)
        task.add_done_callback(self._yielding.discard)
        return await asyncio.shield(task)

    async def _give_up(self, asker: str) -> bool:
        async with self._transition:
            if self._state is not State.ACTIVE:
                return False
            log.info("yield to another instance", extra={"instance": asker})
            await self._leave(State.STANDBY)
            return True

    async def stop(self) -> None:
        """Steps back for good and tells the others that nobody is active; a take-over under way is broken off."""
        if self._attempt is not None:
            self._attempt.cancel()
        async with self._transition:
            if self._state is State.ACTIVE:
                await self._leave(State.STOPPED, release=True)
            self._set(State.STOPPED)

    async def _take_over(self) -> None:
        async with self._transition:
            if self._state is not State.STANDBY or self._clock.monotonic() < self._not_before:
                return
            try:
                snapshot = self._lease.read()
                seen = snapshot.record
                if snapshot.pulse() != self._unresponsive:
                    await self._ask_to_yield(seen)
                if await self._lease.acquire(seen):
                    await self._activate(seen)
            except Exception as error:
                self._fail(error)

    async def _ask_to_yield(self, seen: LeaseRecord) -> None:
        if self._lease.is_void(seen) or self._lease.is_ours(seen) or seen.socket == self._lease.socket:
            return
        try:
            await self._peers.ask_to_yield(seen.socket, self._timing.yield_bound)
        except PeerError as error:
            log.warning("active instance didn't yield, take over without it", extra={"error": str(error)})

    async def _activate(self, former: LeaseRecord) -> None:
        epoch = self._lease.epoch
        if epoch is None:
            raise RecoverableError("take over: the lease was taken and lost at once")
        log.info("take over", extra={"epoch": epoch, "former": former.instance})
        self._set(State.ACTIVATING)
        crashpoints.reached("takeover.acquired")
        try:
            await self._work.activate(epoch)
            crashpoints.reached("takeover.activated")
            self._lease_beat_now()
            self.failure = ""
            self._set(State.ACTIVE)
            self._on_active(True)
        except asyncio.CancelledError:
            await self._leave(State.STANDBY, release=True)
            raise
        except Exception as error:
            await self._leave(State.STANDBY, release=True)
            self._fail(error)

    def _lease_beat_now(self) -> None:
        try:
            self._lease.beat()
        except NotActiveError:
            return  # the next look tells whether it is lost

    def _fail(self, error: Exception) -> None:
        self._not_before = self._clock.monotonic() + self._timing.retry_after
        self.failure = str(error) if isinstance(error, AgentError) else "internal error, see the agent's log"
        if isinstance(error, AgentError):
            log.error("take over", extra={"error": str(error)})
        else:
            log.error("take over", exc_info=error)
        if isinstance(error, FatalError):
            self._on_fatal(error)

    async def _beat(self) -> None:
        try:
            self._lease.beat()
        except NotActiveError:
            await self.verify()

    async def _step_back(self, reason: str) -> None:
        async with self._transition:
            if self._state is State.ACTIVE:
                log.warning("step back", extra={"reason": reason})
                await self._leave(State.STANDBY)

    async def _leave(self, state: State, *, release: bool = False) -> None:
        if self._state is State.ACTIVE:
            self._on_active(False)
        self._set(State.YIELDING)
        try:
            await self._work.deactivate()
        except Exception:
            log.exception("deactivate failed")
        if release:
            self._release()
        self._lease.relinquish()
        self._set(state)

    def _release(self) -> None:
        try:
            self._lease.release()
        except RecoverableError as error:
            log.error("release the lease", extra={"error": str(error)})
        except Exception:
            log.exception("release the lease")

    def _set(self, state: State) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
