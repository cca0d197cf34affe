"""Pods that were seen with a claim, noted in its row for the next holder of the lease (docs/protocol, R_WATCH).

A note may fail (a full disk, a lock that isn't free), and no later sight of the pod would bring it back: what is in the
row is kept apart from what was seen, and each later sight, and each sweep, writes the difference.
"""

import logging

from kubeletplugin.errors import NotActiveError
from kubeletplugin.ledger.model import ClaimRecord
from kubeletplugin.prepare.ports import Node
from kubeletplugin.prepare.sightings import Sightings
from kubeletplugin.troubles import Troubles

log = logging.getLogger(__name__)

WHAT = "note the pods of claims"


class PodNotes:
    def __init__(self, node: Node, sightings: Sightings) -> None:
        self._node = node
        self._sightings = sightings
        self._troubles = Troubles(log)

    async def write(self, uid: str) -> None:
        """What isn't in the claim's row yet, nor being written by another call. Raises nothing: memory has the pods,
        and the next call tries again."""
        pods = self._sightings.take_unwritten(uid)
        if not pods:
            return
        try:
            await self._node.ledger.add_pods(uid, pods)
        except Exception as error:
            self._sightings.give_back(uid, pods)
            if not isinstance(error, NotActiveError):
                self._troubles.failed(WHAT, error)
            return
        self._troubles.over(WHAT)

    async def compare(self, record: ClaimRecord) -> None:
        """The same, by the row as it was read."""
        self._sightings.give_back(record.uid, self._sightings.pods(record.uid) - record.pods)
        await self.write(record.uid)
