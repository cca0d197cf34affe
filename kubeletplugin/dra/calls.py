"""Runs the kubelet's calls so that its deadline ends the call, never the work.

When the kubelet's 45 s are over, grpc.aio cancels the servicer's coroutine. The work therefore runs in a task that the
server owns, shielded from that; and the answer is due a margin earlier, since a call that runs out of time tells the
pod's owner nothing ("context deadline exceeded") while a claim's error does, and a late answer is lost.

The work can ask whether its caller still waits. What has begun is finished in any case; but who has gone may have sent
a newer call since, to another instance even, so nothing is begun for him any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

from kubeletplugin.clock import Clock
from kubeletplugin.errors import NotActiveError
from kubeletplugin.prepare.model import ClaimRef

log = logging.getLogger(__name__)

T = TypeVar("T")

KUBELET_DEADLINE = 45.0
"""Seconds; the kubelet's own for Prepare and Unprepare, used where a caller sets none."""

MARGIN = 2.0
MARGIN_SHARE = 0.2
"""Seconds kept for the way back; of a shorter deadline than the kubelet's at most this share."""

INTERNAL_ERROR = "internal error in the GPU agent; its log on this node has the details"
STOPPING = "the GPU agent is stopping; the next try takes it up again"
OUT_OF_TIME = "the GPU agent is still working on it; the next try takes up the result"


class Caller:
    """Whose call it is, and whether an answer still reaches him."""

    def __init__(self) -> None:
        self._left = asyncio.Event()

    @property
    def has_left(self) -> bool:
        return self._left.is_set()

    def leave(self) -> None:
        self._left.set()

    async def until_left(self) -> None:
        await self._left.wait()


_CALLER: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """Of the call that runs in this task; one who stays where the work wasn't begun by a CallRunner. No parameter:
    those who stand between runner and router, as the metrics do, needn't know of it."""
    return _CALLER.get(None) or Caller()


class CallRunner:
    """Owns the tasks of all calls in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(
        self,
        work: Callable[[Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]],
        claims: Sequence[ClaimRef],
        time_remaining: float | None,
        failure: Callable[[str], T],
    ) -> dict[str, T]:
        """Exactly one entry per claim. Raises NotActiveError if the work does, and CancelledError if the caller went;
        the work goes on in that case."""
        remaining = KUBELET_DEADLINE if time_remaining is None else time_remaining
        margin = min(MARGIN, remaining * MARGIN_SHARE)
        caller = Caller()
        task = asyncio.ensure_future(self._serve(caller, work, claims, self._clock.monotonic() + remaining - margin))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            done, _ = await asyncio.wait({task}, timeout=remaining - margin / 2)
        finally:
            caller.leave()
        if not done:
            log.error("call passed its deadline unanswered", extra={"claims": [claim.uid for claim in claims]})
            return {claim.uid: failure(OUT_OF_TIME) for claim in claims}
        if task.cancelled():
            return {claim.uid: failure(STOPPING) for claim in claims}
        try:
            results = task.result()
        except NotActiveError:
            raise
        except Exception:
            log.exception("call failed", extra={"claims": [claim.uid for claim in claims]})
            return {claim.uid: failure(INTERNAL_ERROR) for claim in claims}
        return {claim.uid: self._entry(results, claim, failure) for claim in claims}

    @staticmethod
    async def _serve(
        caller: Caller,
        work: Callable[[Sequence[ClaimRef], float], Awaitable[Mapping[str, T]]],
        claims: Sequence[ClaimRef],
        deadline: float,
    ) -> Mapping[str, T]:
        _CALLER.set(caller)
        return await work(claims, deadline)

    async def drain(self, seconds: float) -> bool:
        """Waits until no call is in flight; False when time ran out."""
        if not self._tasks:
            return True
        _, pending = await asyncio.wait(self._tasks, timeout=seconds)
        return not pending

    async def cancel(self) -> None:
        """Ends what is still in flight, at the end of the process."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone; whoever is there has reported it

    def _entry(self, results: Mapping[str, T], claim: ClaimRef, failure: Callable[[str], T]) -> T:
        if claim.uid in results:
            return results[claim.uid]
        log.error("claim %s/%s got no answer", claim.namespace, claim.name, extra={"claim": claim.uid})
        return failure(INTERNAL_ERROR)
