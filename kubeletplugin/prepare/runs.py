"""The Prepares under way: at most one per claim that counts, and who follows it."""

import asyncio
import logging
from dataclasses import dataclass

from kubeletplugin.errors import ClaimError, NotActiveError
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.preparer import Effort, Preparer
from kubeletplugin.prepare.slots import ClaimTurns

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Run:
    """``successor`` is the newer call's run that took this one's place."""

    effort: Effort
    task: "asyncio.Task[PrepareResult]"
    successor: "Run | None" = None


class Runs:
    def __init__(self, node: Node, turns: ClaimTurns, preparer: Preparer) -> None:
        self._node = node
        self._turns = turns
        self._preparer = preparer
        self._latest: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[PrepareResult]] = set()
        self._stopped = False

    def start(self, ref: ClaimRef, give_up_at: float) -> Run:
        """Begins a run in the place of one that waits. Raises NotActiveError after ``stop``."""
        if self._stopped:
            raise NotActiveError("prepare a claim: this instance is giving way to another")
        effort = Effort(ref, give_up_at)
        run = Run(effort, asyncio.ensure_future(self._perform(effort)))
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        previous = self._latest.get(ref.uid)
        self._latest[ref.uid] = run
        run.task.add_done_callback(lambda task: self._forget(ref.uid, run, task))
        if previous is not None:
            previous.successor = run
            previous.task.cancel()
        return run

    def interrupt(self, uid: str) -> None:
        """Ends the claim's run: at once where it waits, else when it is done with what it does."""
        run = self._latest.pop(uid, None)
        if run is not None:
            run.task.cancel()

    async def follow(self, run: Run, deadline: float) -> PrepareResult:
        """The outcome of the run, or of the one in its place. Raises NotActiveError."""
        clock = self._node.clock
        while True:
            if not await wait_for_any(clock, run.task, deadline - clock.monotonic()):
                return PrepareResult(error=f"still waiting: {run.effort.reason}")
            if not run.task.cancelled():
                return run.task.result()
            if run.successor is None:
                break
            run = run.successor
        if self._stopped:
            raise NotActiveError("prepare a claim: this instance is giving way to another")
        return PrepareResult(error=f"claim {run.effort.ref.name} was unprepared while it was being prepared")

    def waiting(self) -> tuple[tuple[ClaimRef, str], ...]:
        return tuple((run.effort.ref, run.effort.reason) for run in self._latest.values())

    def busy(self, uid: str) -> bool:
        return uid in self._latest

    async def stop(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _perform(self, effort: Effort) -> PrepareResult:
        ref = effort.ref
        try:
            async with self._turns.turn(ref.uid):
                return await self._preparer.prepare(effort)
        except ClaimError as error:
            log.info("refuse claim %s/%s: %s", ref.namespace, ref.name, error, extra={"claim": ref.uid})
            return PrepareResult(error=str(error))
        except NotActiveError:
            raise
        except Exception:
            log.exception("prepare claim %s/%s", ref.namespace, ref.name, extra={"claim": ref.uid})
            return PrepareResult(error=f"prepare claim {ref.name}: internal error, see the agent's log")

    def _forget(self, uid: str, run: Run, task: "asyncio.Task[PrepareResult]") -> None:
        if not task.cancelled():
            task.exception()  # a run may have no caller left to hear of it
        if self._latest.get(uid) is run:
            del self._latest[uid]
