"""Watches the claims that are prepared on this node, one small watch for each.

A pod that joins a prepared claim brings no Prepare; who used the claim must be known before its device is given on
(docs/protocol, R_WATCH). There is no selector for "claims of this node", and every agent watching every claim of the
cluster would cost more than a few watches by name, which is how the kubelet watches its secrets.

A claim that was just prepared was just read, so its watch begins at the state that was read: no list, and nothing that
happened in between is missed. Where that state is too old for the server, or none is known, it begins with a list.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable

from kubeapi.client import RESOURCE_CLAIMS, Json, KubeApi, Resource
from kubeapi.complaints import Complaints
from kubeapi.reflector import Change, Reflector
from kubeletplugin.clock import Clock
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.ports import ClaimReader
from kubeletplugin.supervision import Supervisor
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

WATCH = "watch the node's claims"

REMEMBERED = 256
"""Claims whose states are kept until they are watched: more than are prepared on a node in the second before that."""


class ReadClaims:
    """A ClaimReader that remembers for a moment what it read of claims that nobody watches."""

    def __init__(self, api: ClaimReader) -> None:
        self._api = api
        self._states: dict[str, Json] = {}
        self._older: dict[str, Json] = {}
        self._watched: frozenset[str] = frozenset()

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        claim = await self._api.get(resource, name, namespace=namespace)
        uid = claim["metadata"]["uid"]
        if uid not in self._watched:
            self._states.pop(uid, None)
            self._states[uid] = claim
            if len(self._states) > REMEMBERED:
                del self._states[next(iter(self._states))]
        return claim

    def state(self, uid: str) -> Json | None:
        return self._states.get(uid) or self._older.get(uid)

    def watched(self, uids: Iterable[str]) -> None:
        """These are watched, and no others. What else was read by the last time is forgotten, not yet what was read
        since: that claim may be about to be watched."""
        self._watched = frozenset(uids)
        self._older = {uid: state for uid, state in self._states.items() if uid not in self._watched}
        self._states = {}


class ClaimWatches:
    def __init__(
        self,
        api: KubeApi,
        clock: Clock,
        observe: Callable[[Json], None],
        gone: Callable[[str], None] | None = None,
        read: ReadClaims | None = None,
    ) -> None:
        """``gone`` is told the UID of a watched claim that was deleted; ``read`` knows those that were just read."""
        self._api = api
        self._read = read or ReadClaims(api)
        self._gone = gone
        self._clock = clock
        self._observe = observe
        self._complaints = Complaints(log, WATCH)
        self._supervisor = Supervisor(clock, Troubles(log))
        self._watches: dict[ClaimRef, asyncio.Task[None]] = {}
        self._starts: dict[ClaimRef, Json | None] = {}
        self._stopped = False

    def follow(self, claims: frozenset[ClaimRef]) -> None:
        """Watches these and no others; after ``stop`` none."""
        if self._stopped:
            claims = frozenset()
        for ref in self._watches.keys() - claims:
            self._watches.pop(ref).cancel()
            self._starts.pop(ref, None)
        for ref in claims - self._watches.keys():
            self._starts[ref] = self._read.state(ref.uid)
            self._watches[ref] = self._supervisor.start(WATCH, functools.partial(self._watch, ref))
        self._read.watched(ref.uid for ref in claims)

    async def stop(self) -> None:
        self._stopped = True
        self.follow(frozenset())
        await self._supervisor.stop()

    async def _watch(self, ref: ClaimRef) -> None:
        """Begun anew, it begins with a list: what it began with may be why it failed."""
        reflector = Reflector(
            self._api,
            RESOURCE_CLAIMS,
            clock=self._clock,
            namespace=ref.namespace,
            field_selector=f"metadata.name={ref.name}",
            complaints=self._complaints,
            start=self._starts.pop(ref, None),
        )

        def told(change: Change) -> None:
            if change.object["metadata"]["uid"] != ref.uid:
                return
            if change.type != "DELETED":
                self._observe(change.object)
            elif self._gone is not None:
                self._gone(ref.uid)

        reflector.subscribe(told)
        await reflector.run()
