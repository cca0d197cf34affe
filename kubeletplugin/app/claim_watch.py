"""Watches the claims that are prepared on this node, one small watch for each.

A pod that joins a prepared claim brings no Prepare; who used the claim must be known before its device is given on
(docs/protocol, R_WATCH). There is no selector for "claims of this node", and every agent watching every claim of the
cluster would cost more than a few watches by name, which is how the kubelet watches its secrets.
"""

import asyncio
import logging
from collections.abc import Callable

from kubeapi.client import RESOURCE_CLAIMS, Json, KubeApi
from kubeapi.complaints import Complaints
from kubeapi.reflector import Change, Reflector
from kubeletplugin.clock import Clock
from kubeletplugin.prepare.model import ClaimRef

log = logging.getLogger(__name__)


class ClaimWatches:
    def __init__(
        self, api: KubeApi, clock: Clock, observe: Callable[[Json], None], gone: Callable[[str], None] | None = None
    ) -> None:
        """``gone`` is told the UID of a watched claim that was deleted."""
        self._api = api
        self._gone = gone
        self._clock = clock
        self._observe = observe
        self._complaints = Complaints(log, "watch the node's claims")
        self._watches: dict[ClaimRef, asyncio.Task[None]] = {}
        self._stopped = False

    def follow(self, claims: frozenset[ClaimRef]) -> None:
        """Watches these and no others; after ``stop`` none."""
        if self._stopped:
            claims = frozenset()
        for ref in self._watches.keys() - claims:
            self._watches.pop(ref).cancel()
        for ref in claims - self._watches.keys():
            self._watches[ref] = asyncio.create_task(self._watch(ref), name=f"watch claim {ref.uid}")

    async def stop(self) -> None:
        tasks = list(self._watches.values())
        self._stopped = True
        self.follow(frozenset())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, ref: ClaimRef) -> None:
        reflector = Reflector(
            self._api,
            RESOURCE_CLAIMS,
            clock=self._clock,
            namespace=ref.namespace,
            field_selector=f"metadata.name={ref.name}",
            complaints=self._complaints,
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
