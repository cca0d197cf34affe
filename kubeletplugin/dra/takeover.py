"""Which of a node's instances is the active one, seen from one instance (design: "Two agents on one node").

Standby -> activating -> active -> yielding -> standby. An instance asks for the lease for one of four reasons only:
the kubelet has just called it, the kubelet has confirmed its first registration, nobody is active, or the active
one's heartbeat stands still. A call that another instance passed on is no reason, or two instances with a call each
would take the lease from each other for ever (R_YIELD).

Whoever takes over asks the active one to yield first, and goes ahead without an answer after a bound: the lease, not
politeness, keeps the two apart. One transition runs at a time, in a task that no caller's deadline ends. The heart
beats from the lease's first moment to its last: taking up the work may last longer than a standby waits for a beat.

An instance whose work can't begin gives the lease back and, while another one serves, asks for it less and less often:
who can't serve must not disturb who can.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from kubeletplugin import crashpoints
from kubeletplugin.clock import Clock
from kubeletplugin.dra.instance import PeerError, Peers
from kubeletplugin.errors import AgentError, FatalError, NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.record import LeaseRecord
from kubeletplugin.lease.stale import StaleDetector
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

BEAT = "write a heartbeat"
LOOK = "look at the lease"
TAKE_OVER = "take over"
REFUSALS_TOLD = 3
"""Heartbeats in a row that found the lease locked."""


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
    that is finished on yielding; ``retry_after`` keeps an instance that can't work from asking at every call, and
    doubles from failure to failure up to ``last_retry`` while another one serves."""

    look: float = 1.0
    yield_bound: float = 10.0
    retry_after: float = 5.0
    last_retry: float = 300.0


class TakeOver:
    def __init__(
        self,
        lease: Lease,
        work: ActiveWork,
        peers: Peers,
        stale: StaleDetector,
        *,
        clock: Clock,
        on_state: Callable[[State], None],
        on_fatal: Callable[[FatalError], None],
        timing: TakeOverTiming | None = None,
    ) -> None:
        """``on_state`` is told each new state, on the event loop; it must return at once."""
        self._lease = lease
        self._work = work
        self._peers = peers
        self._stale = stale
        self._clock = clock
        self._on_state = on_state
        self._on_fatal = on_fatal
        self._timing = timing or TakeOverTiming()
        self._state = State.STANDBY
        self._changed = asyncio.Event()
        self._transition = asyncio.Lock()
        self._attempt: asyncio.Task[None] | None = None
        self._was_registered = False
        self._yielding: set[asyncio.Task[Any]] = set()
        self._unresponsive: object = None
        self._not_before = 0.0
        self._failures = 0
        self._not_before_another = 0.0
        self._troubles = Troubles(log, logging.ERROR)
        self.failure = ""
        self._refused = 0
        self.blocked = ""
        """Why nothing has been done under the lease for some seconds, though this instance holds it."""
        self.passed_over = ""
        """The socket of the instance that hung when this one took over from it, else empty."""

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
        """The heartbeat of a holder of the lease, the looks of a standby; for ever, whatever goes wrong in one."""
        await asyncio.gather(self._for_ever(BEAT, self.beat), self._for_ever(LOOK, self.look))

    async def _for_ever(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._clock.sleep(self._timing.look)
            try:
                await work()
            except Exception as error:
                self._troubles.failed(name, error)
            else:
                self._troubles.over(name)

    async def beat(self) -> None:
        """One heartbeat, if this instance holds the lease; steps back if it is another's by now. RecoverableError when
        somebody has kept it locked for several."""
        if self._lease.epoch is None:
            self._refused, self.blocked = 0, ""
            return
        try:
            self._lease.beat()
        except NotActiveError:
            await self.verify()
            self._note_refusal()
        else:
            self._refused, self.blocked = 0, ""

    def _note_refusal(self) -> None:
        """Whoever takes over locks the lease for milliseconds."""
        self._refused += 1
        if self._refused >= REFUSALS_TOLD and self._lease.epoch is not None and not self._lease.lost():
            self.blocked = self.blocked or self._lease.blocked()
            raise RecoverableError(self.blocked)

    async def look(self) -> None:
        if self._state is not State.STANDBY or not self._was_registered or self._clock.monotonic() < self._not_before:
            return
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
            await self._step_back(self._lease.loss())

    def begin_anew(self, reason: str) -> None:
        """For an active instance that can't go on as it is: it steps back, and whoever looks next takes over."""
        task = asyncio.create_task(self._step_back(reason, release=True), name="begin anew")
        self._yielding.add(task)
        task.add_done_callback(self._yielding.discard)

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
                hangs = snapshot.pulse() == self._unresponsive
                if not hangs and self._leaves_it_to(snapshot.record):
                    return
                if not hangs:
                    await self._ask_to_yield(snapshot.record)
                if await self._lease.acquire(snapshot.record):
                    self.passed_over = snapshot.record.socket if hangs else ""
                    await self._activate(snapshot.record)
            except Exception as error:
                self._fail(error)

    def _leaves_it_to(self, seen: LeaseRecord) -> bool:
        """Another one serves, and this one couldn't the last time that it tried."""
        return self._clock.monotonic() < self._not_before_another and not self._lease.is_void(seen)

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
            self._beat_once()
            self.failure, self._failures = "", 0
            self._troubles.over(TAKE_OVER)
            self._set(State.ACTIVE)
        except asyncio.CancelledError:
            await self._leave(State.STANDBY, release=True)
            raise
        except Exception as error:
            await self._leave(State.STANDBY, release=True)
            self._fail(error)

    def _beat_once(self) -> None:
        """Who can't write a heartbeat would be overtaken again and again."""
        try:
            self._lease.beat()
        except NotActiveError:
            return  # the next beat tells whether it is lost

    def _fail(self, error: Exception) -> None:
        timing, now = self._timing, self._clock.monotonic()
        self._failures += 1
        self._not_before = now + timing.retry_after
        self._not_before_another = now + min(timing.retry_after * 2 ** min(self._failures, 16), timing.last_retry)
        self.failure = _told(error)
        if isinstance(error, FatalError):
            self._on_fatal(error)  # whoever ends the process tells it
        else:
            self._troubles.failed(TAKE_OVER, error)

    async def _step_back(self, reason: str, *, release: bool = False) -> None:
        async with self._transition:
            if self._state is State.ACTIVE:
                log.warning("step back", extra={"reason": reason})
                await self._leave(State.STANDBY, release=release)

    async def _leave(self, state: State, *, release: bool = False) -> None:
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
        if state is self._state:
            return
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            self._on_state(state)
        except Exception:
            log.exception("tell that this instance is %s", state.value)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, AgentError) else "internal error, see the agent's log"
