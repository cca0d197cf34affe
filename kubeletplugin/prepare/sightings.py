"""What has been seen of claims that are being prepared or are prepared, in memory.

Above all their pods: a set that only grows until the claim ends (R_WATCH). A pod may join a claim that is
prepared already without a call to us, and leave it again before we look; its processes count all the same. So every
sight of the claim adds: each GET, each change of the node's claims, each reading of the kubelet's list. The claim's
row has them, too, as soon as there is one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kubeapi.client import Json
from kubeletplugin.prepare import allocation as claims


@dataclass(slots=True)
class _Sight:
    pods: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    fingerprint: str = ""
    moved_to: str = ""
    told_of: str = ""


class Sightings:
    """Claims are followed from the beginning of a Prepare until they end."""

    def __init__(self) -> None:
        self._sights: dict[str, _Sight] = {}

    def follow(self, uid: str, pods: Iterable[str] = (), *, fingerprint: str = "") -> None:
        """``fingerprint`` of the allocation that is prepared now, where it is."""
        sight = self._sights.setdefault(uid, _Sight())
        sight.pods.update(pods)
        sight.fingerprint = fingerprint or sight.fingerprint

    def add(self, uid: str, pods: Iterable[str]) -> None:
        """Adds to a followed claim."""
        sight = self._sights.get(uid)
        if sight is not None:
            sight.pods.update(pods)

    def observe(self, claim: Json) -> None:
        """A sight of the claim by a watch; notes also whether the claim has moved."""
        uid = claim["metadata"]["uid"]
        sight = self._sights.get(uid)
        if sight is None:
            return
        allocation = claims.read(claim)
        if allocation is not None and sight.fingerprint:
            sight.moved_to = "" if allocation.fingerprint == sight.fingerprint else allocation.fingerprint
        sight.pods.update(claims.pods_of(claim))

    # --- which of them the claim's row has ---
    def written(self, uid: str, pods: Iterable[str]) -> None:
        """A row with these pods was read or committed."""
        sight = self._sights.get(uid)
        if sight is not None:
            sight.written.update(pods)

    def unwritten(self, uid: str) -> frozenset[str]:
        sight = self._sights.get(uid)
        return frozenset(sight.pods - sight.written) if sight else frozenset()

    def take_unwritten(self, uid: str) -> frozenset[str]:
        """They count as written from now on; who fails to write them gives them back."""
        taken = self.unwritten(uid)
        self.written(uid, taken)
        return taken

    def give_back(self, uid: str, pods: Iterable[str]) -> None:
        sight = self._sights.get(uid)
        if sight is not None:
            sight.written.difference_update(pods)

    def moved(self, uid: str) -> bool:
        """Last seen with another allocation than the prepared one, and nobody has been told of it."""
        sight = self._sights.get(uid)
        return sight is not None and sight.moved_to not in ("", sight.told_of)

    def told(self, uid: str) -> None:
        sight = self._sights.get(uid)
        if sight is not None:
            sight.told_of = sight.moved_to

    def pods(self, uid: str) -> frozenset[str]:
        sight = self._sights.get(uid)
        return frozenset(sight.pods) if sight else frozenset()

    def forget(self, uid: str) -> None:
        self._sights.pop(uid, None)

    def followed(self) -> frozenset[str]:
        return frozenset(self._sights)
