"""Pods that joined a claim while it was being unprepared: the kubelet's own fault (docs/protocol).

It starts such a pod without a Prepare, since it believes the claim prepared, and forgets the claim with all its pods
when Unprepare is answered. The device stays single: what runs keeps it draining. But the pod's containers can't be
started (again) until a person deletes the pod, and nothing else says so.
"""

import logging
from dataclasses import dataclass

from kubeapi import errors as api_errors
from kubeapi.client import RESOURCE_CLAIMS
from kubeletplugin.prepare import allocation as claims
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.ports import Node

log = logging.getLogger(__name__)

SETTLE_SECONDS = 5.0
"""After this the kubelet has taken in the answer, and the pod that it was for is off the claim."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    ref: ClaimRef
    pods: frozenset[str]
    at: float


class Joins:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._suspects: dict[str, _Suspect] = {}

    async def unprepared(self, ref: ClaimRef) -> None:
        """To be called just before the answer: Unprepare is for a claim's last pod, so that of several some have joined
        since it was sent."""
        pods = (await self._node.kubelet_claims(ref.uid)).pods(ref.uid)
        if len(pods) > 1:
            self._suspects[ref.uid] = _Suspect(ref, pods, self._node.clock.monotonic())

    async def tell(self, kubelet: KubeletClaims) -> None:
        """Tells of those that are stuck. ``kubelet`` is its list as it is now."""
        now = self._node.clock.monotonic()
        for suspect in [one for one in self._suspects.values() if now - one.at >= SETTLE_SECONDS]:
            uid = suspect.ref.uid
            if kubelet.unreadable:
                continue
            stuck: frozenset[str] = frozenset()
            if not kubelet.lists(uid) and await self._node.ledger.claim(uid) is None:
                try:
                    stuck = await self._reserved(suspect)
                except api_errors.ApiError as error:
                    log.warning("look for pods of claim %s: %s", suspect.ref.name, error, extra={"claim": uid})
                    continue
                except Exception:
                    log.exception("look for pods of claim %s", suspect.ref.name, extra={"claim": uid})
            self._suspects.pop(uid, None)
            if stuck:
                self._node.notices.claim_forgotten(suspect.ref, stuck)

    async def _reserved(self, suspect: _Suspect) -> frozenset[str]:
        """Those that the claim is still reserved for: the one that Unprepare was for isn't any more."""
        ref = suspect.ref
        try:
            claim = await self._node.api.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
        except api_errors.NotFound as error:
            if not claims.is_gone(error, ref.name):
                raise
            return frozenset()
        return suspect.pods & claims.pods_of(claim) if claim["metadata"]["uid"] == ref.uid else frozenset()
