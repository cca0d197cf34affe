"""What a Prepare would meet if it came now, and when the last one came: for whoever wants to have the kubelet try
again, which does so by itself only a minute after a failure.

A look ahead judges by what this node knows, with the code of Prepare. It makes no request, so it may be made often; and
it leaves nothing behind.
"""

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kubeletplugin.errors import RecoverableError
from kubeletplugin.prepare.allocation import Allocation
from kubeletplugin.prepare.bells import Bells, claim_key
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.runs import Runs

REMEMBERED_SECONDS = 600.0
"""How long a call is remembered that no other one for the claim has followed."""


class State(enum.Enum):
    PREPARED = "prepared"
    """The row's answer would be given again."""
    READY = "ready"
    """Nothing is in the way."""
    BUSY = "busy"
    """A run is at it."""
    BLOCKED = "blocked"
    FOREIGN = "foreign"
    """No device of ours is allocated to it."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """``cdi_names``: what the kubelet has for a prepared claim once it took the answer. ``bells`` ring when it may have
    changed."""

    state: State
    reason: str = ""
    cdi_names: frozenset[str] = frozenset()
    bells: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LastCall:
    """The kubelet's last Prepare of a claim; ``at`` is when it came or, where that is so, was answered. ``error`` is
    None while it isn't."""

    at: float
    error: str | None


class Prospects:
    """By namespace and name, since a pod names its claims so. Lives as long as the ClaimManager that it is of."""

    def __init__(self, node: Node, bells: Bells, runs: Runs, preparer: Preparer) -> None:
        self._node = node
        self._bells = bells
        self._runs = runs
        self._preparer = preparer
        self._listeners: list[Callable[[Collection[str]], None]] = []
        self._calls: dict[tuple[str, str], LastCall] = {}
        self.last_call_at = 0.0
        """Of any claim; monotonic."""

    # --- told by the manager ---
    def called(self, refs: Sequence[ClaimRef]) -> None:
        self.last_call_at = now = self._node.clock.monotonic()
        self._calls = {key: call for key, call in self._calls.items() if now - call.at < REMEMBERED_SECONDS}
        self._calls |= {_key(ref): LastCall(now, None) for ref in refs}

    def answered(self, refs: Sequence[ClaimRef], results: Sequence[PrepareResult]) -> None:
        now = self._node.clock.monotonic()
        self._calls |= {_key(ref): LastCall(now, result.error) for ref, result in zip(refs, results, strict=True)}
        failed = {claim_key(ref.uid) for ref, result in zip(refs, results, strict=True) if result.error}
        for callback in self._listeners:
            callback(failed)

    def unprepared(self, ref: ClaimRef) -> None:
        self._calls.pop(_key(ref), None)

    # --- asked ---
    def last_call(self, namespace: str, name: str) -> LastCall | None:
        """None for one that is long ago, or came to another instance."""
        return self._calls.get((namespace, name))

    def listen(self, callback: Callable[[Collection[str]], None]) -> Callable[[], None]:
        """Called with the bells that ring, and with those of claims whose Prepare was answered with an error; it must
        return at once and not raise. Returns what ends it."""
        self._listeners.append(callback)
        leave = self._bells.subscribe(callback)

        def end() -> None:
            leave()
            self._listeners.remove(callback)

        return end

    async def look(self, allocation: Allocation) -> Prospect:
        """``allocation`` as it was read at some time. Raises NotActiveError."""
        if not allocation.results:
            return Prospect(State.FOREIGN)
        own = frozenset({claim_key(allocation.uid)})
        if self._runs.busy(allocation.uid):
            return Prospect(State.BUSY, bells=own)
        try:
            record = await self._node.ledger.claim(allocation.uid)
            if record is not None and await self._preparer.answers(record, allocation):
                return Prospect(State.PREPARED, cdi_names=frozenset(record.cdi_names), bells=own)
            outlook = await self._preparer.look_ahead(allocation)
        except RecoverableError as error:
            return Prospect(State.BLOCKED, str(error), bells=own)
        state = State.BLOCKED if outlook.reason else State.READY
        return Prospect(state, outlook.reason, bells=own | outlook.bells)

    async def recall(self, uid: str) -> Prospect:
        """Of a claim that nobody read: that it is READY says only that it isn't PREPARED. Raises NotActiveError."""
        own = frozenset({claim_key(uid)})
        if self._runs.busy(uid):
            return Prospect(State.BUSY, bells=own)
        try:
            record = await self._node.ledger.claim(uid)
        except RecoverableError as error:
            return Prospect(State.BLOCKED, str(error), bells=own)
        if record is None:
            return Prospect(State.READY, bells=own)
        return Prospect(State.PREPARED, cdi_names=frozenset(record.cdi_names), bells=own)


def _key(ref: ClaimRef) -> tuple[str, str]:
    return ref.namespace, ref.name
