"""Serves a call wherever it can be served: here while this instance is active, else by the active one.

No call fails because the active instance changes under it. It waits for a take-over, is served here, or is passed on;
when the handler says that this instance isn't active any more, it is passed on too.

But only as long as its caller waits (R_YIELD: what is passed on is an *open* call). The kubelet sends the next call for
a claim when it has given this one up, and it may go to another instance: an old Unprepare that arrived there after the
new Prepare would undo what the kubelet believes prepared, and an old Prepare after the Unprepare would hold for nobody.
An instance that stood still learns only from its sockets that a caller has gone, so it makes a round trip before it
passes a call on: what had arrived at this instance before has been read then.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from kubeletplugin.clock import Clock
from kubeletplugin.dra.calls import STOPPING, Caller, current_caller
from kubeletplugin.dra.instance import PeerError, Peers
from kubeletplugin.dra.takeover import State, TakeOver
from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.prepare.model import ClaimHandler, ClaimRef, PrepareResult

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE = 0.05
"""Seconds between two looks at the lease while a call has nobody to serve it; a take-over takes about that long."""

CANT_SERVE = "the GPU agent can't serve claims now"
NOBODY_WAITS = "the caller gave this call up before it could be served"

Local = Callable[[Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]]
Relay = Callable[[str, Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]]


class FreshHandler:
    """A ClaimHandler for what comes from the kubelet; such a call makes this instance ask for the lease, once."""

    def __init__(self, handler: ClaimHandler, takeover: TakeOver, lease: Lease, peers: Peers, clock: Clock) -> None:
        self._handler = handler
        self._takeover = takeover
        self._lease = lease
        self._peers = peers
        self._clock = clock

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        results = await self._route(self._handler.prepare, self._peers.prepare, claims, deadline)
        if isinstance(results, str):
            return {claim.uid: PrepareResult(error=results) for claim in claims}
        return results

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        results = await self._route(self._handler.unprepare, self._peers.unprepare, claims, deadline)
        return dict.fromkeys((claim.uid for claim in claims), results) if isinstance(results, str) else results

    async def _route(
        self, local: Local[T], relay: Relay[T], claims: Sequence[ClaimRef], deadline: float
    ) -> Mapping[str, T] | str:
        """A text says why nobody served it."""
        caller = current_caller()
        if self._takeover.state is not State.ACTIVE and not caller.has_left:
            await asyncio.wait({self._takeover.ask()}, timeout=self._left(deadline))
        last: Exception | None = None
        while self._left(deadline) > 0:
            if caller.has_left:
                log.info("drop a call whose caller has gone", extra={"claims": [claim.uid for claim in claims]})
                return NOBODY_WAITS
            here = self._takeover.active
            try:
                return await (local(claims, deadline) if here else self._pass_on(relay, claims, deadline, caller))
            except NotActiveError as error:
                last = await self._verified(error)
            except (PeerError, RecoverableError) as error:
                last = error
                if here and self._takeover.active:
                    log.error("serve claims", extra={"claims": [claim.uid for claim in claims], "error": str(error)})
                    return f"{CANT_SERVE}: {error}"
                log.debug("pass a call on", extra={"error": str(error)})
            await self._clock.sleep(min(PAUSE, max(self._left(deadline), 0)))
        return self._why_not(last)

    async def _verified(self, error: Exception) -> Exception:
        """Has this instance step back if it isn't active any more; returns what stands in the way."""
        try:
            await self._takeover.verify()
        except RecoverableError as unreadable:
            return unreadable
        return error

    async def _pass_on(
        self, relay: Relay[T], claims: Sequence[ClaimRef], deadline: float, caller: Caller
    ) -> Mapping[str, T]:
        """Has the active instance serve the call, unless this one becomes active meanwhile or the caller goes."""
        record = self._lease.read().record
        if self._lease.is_void(record) or record.socket == self._lease.socket:
            raise PeerError("no other instance is active")
        call = asyncio.ensure_future(self._hand_over(relay, record.socket, claims, deadline, caller))
        change = asyncio.ensure_future(self._takeover.changed(self._takeover.state))
        left = asyncio.ensure_future(caller.until_left())
        try:
            await asyncio.wait({call, change, left}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise PeerError("the active instance changed" if change.done() else NOBODY_WAITS)
            return call.result()
        finally:
            for task in (call, change, left):
                task.cancel()
            await asyncio.gather(call, change, left, return_exceptions=True)

    async def _hand_over(
        self, relay: Relay[T], socket: str, claims: Sequence[ClaimRef], deadline: float, caller: Caller
    ) -> Mapping[str, T]:
        if not await self._peers.responds(socket, self._left(deadline)):
            raise PeerError(f"pass a call on to {socket}: no sign of life there")
        if caller.has_left:
            raise PeerError(NOBODY_WAITS)
        return await relay(socket, claims, self._left(deadline))

    def _left(self, deadline: float) -> float:
        return deadline - self._clock.monotonic()

    def _why_not(self, last: Exception | None) -> str:
        if self._takeover.state is State.STOPPED:
            return STOPPING
        if self._takeover.failure:
            return f"{CANT_SERVE}: {self._takeover.failure}"
        undecided = f"{CANT_SERVE}: the instances of the agent didn't agree in time who serves"
        return undecided if last is None else f"{undecided}; at last: {last}"


class RelayedHandler:
    """A ClaimHandler for what another instance passed on: NotActiveError sends it back to look for the active one."""

    def __init__(self, handler: ClaimHandler, takeover: TakeOver, clock: Clock) -> None:
        self._handler = handler
        self._takeover = takeover
        self._clock = clock

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        await self._settle(deadline)
        return await self._handler.prepare(claims, deadline)

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        await self._settle(deadline)
        return await self._handler.unprepare(claims, deadline)

    async def _settle(self, deadline: float) -> None:
        """The caller reads the new epoch before this instance has finished activating: wait for that."""
        if self._takeover.state is State.ACTIVATING:
            left = deadline - self._clock.monotonic()
            change = asyncio.ensure_future(self._takeover.changed(State.ACTIVATING))
            await asyncio.wait({change}, timeout=left)
            change.cancel()
        if not self._takeover.active:
            raise NotActiveError("serve a relayed call: this instance isn't active")
        if current_caller().has_left:
            raise NotActiveError(f"serve a relayed call: {NOBODY_WAITS}")
