"""What a Prepare would meet if it came now, and when the last one came: for whoever wants to have the kubelet try
again, which does so by itself only a minute after a failure.

A look ahead does what Prepare does before its commit, with the same code, and leaves nothing behind but holds ended
that were over.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from kubeapi.client import Json
from kubeletplugin.errors import ClaimError, RecoverableError
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.preparer import AllocatedAnew, Preparer
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
    """``cdi_names``: what the kubelet has for a prepared claim once it took the answer."""

    state: State
    reason: str = ""
    cdi_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LastCall:
    """The kubelet's last Prepare of a claim; ``at`` is when it came or, where that is so, was answered. ``error`` is
    None while it isn't."""

    at: float
    error: str | None


class Prospects:
    """By namespace and name, since a pod names its claims so. Lives as long as the ClaimManager that it is of."""

    def __init__(self, node: Node, runs: Runs, preparer: Preparer) -> None:
        self._node = node
        self._runs = runs
        self._preparer = preparer
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

    def unprepared(self, ref: ClaimRef) -> None:
        self._calls.pop(_key(ref), None)

    # --- asked ---
    def last_call(self, namespace: str, name: str) -> LastCall | None:
        """None for one that is long ago, or came to another instance."""
        return self._calls.get((namespace, name))

    async def look(self, claim: Json) -> Prospect:
        """``claim`` is as just read. Raises NotActiveError."""
        allocation = claims.read(claim)
        if allocation is None or not allocation.results:
            return Prospect(State.FOREIGN)
        if self._runs.busy(allocation.uid):
            return Prospect(State.BUSY)
        try:
            record = await self._node.ledger.claim(allocation.uid)
            if record is not None and await self._preparer.answers(record, allocation):
                return Prospect(State.PREPARED, cdi_names=frozenset(record.cdi_names))
            reason = await self._preparer.look_ahead(allocation)
        except AllocatedAnew:
            reason = "it was allocated differently just now"
        except (ClaimError, RecoverableError) as error:
            reason = str(error)
        return Prospect(State.BLOCKED, reason) if reason else Prospect(State.READY)


def _key(ref: ClaimRef) -> tuple[str, str]:
    return ref.namespace, ref.name
