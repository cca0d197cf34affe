"""Keeps ``status.devices`` of this node's prepared claims true, beside everything else and in nobody's way.

Works from the ledger's rows and from what the claims' watches show, so that it makes no request of its own but the
write, and none where the claim says already what it should: an agent that restarts writes nothing. A claim that ends
within the second before it is followed costs nothing at all, and neither does one that was deallocated in time, since
the API server takes the entries of deallocated devices away itself.

By server-side apply with a field manager of this node: it changes our own entries and no others, and an entry that
isn't applied any more goes. A write that fails is tried again with a back-off for each claim; what can't be told costs
only itself.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from deviceclasses.names import DRIVER_NAME
from kubeapi.backoff import Backoff
from kubeapi.client import RESOURCE_CLAIMS, Json, Resource
from kubeapi.complaints import Complaints
from kubeapi.errors import ApiError, Invalid, NotFound
from kubeletplugin.app.tell.claim_status_entries import Entries, Entry, Key, agree, body, shown, wanted
from kubeletplugin.clock import Clock
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import ClaimRecord
from kubeletplugin.prepare import record as records
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.record import RecordedDevice

log = logging.getLogger(__name__)

AT_ONCE = 4
"""Writes under way at the same time: a reboot of a full node must not push the prepares' own reads aside."""
LONGEST_BACKOFF = 300.0
TRIES_AFTER_THE_END = 6
"""To take the entries of an unprepared claim away; they go with its allocation in any case."""
_MANAGER_LENGTH = 128
_UNSUPPORTED = (
    "the API server drops status.devices of ResourceClaims: claims don't show their devices; it takes the feature gate"
    " DRAResourceClaimDeviceStatus there (on by default), and a restart of this agent"
)


class StatusWriter(Protocol):
    """The one call that is made (see kubeapi.client.KubeApi)."""

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Json,
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> Json: ...


@dataclass(slots=True)
class _Followed:
    """``shown`` is None until the claim was seen. ``settled`` is what was wanted and shown after the last write:
    the same again would change nothing."""

    ref: ClaimRef
    devices: tuple[RecordedDevice, ...]
    shown: Entries | None = None
    version: int = 0
    settled: tuple[Mapping[Key, Entry], Entries] | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(initial=1.0, maximum=LONGEST_BACKOFF))
    failures: int = 0
    not_before: float = 0.0

    def saw(self, claim: Json) -> bool:
        """False for a state that is older than what is known."""
        version = int(claim["metadata"].get("resourceVersion", "0"))
        if version < self.version:
            return False
        self.version, self.shown = version, shown(claim)
        return True


class ClaimStatuses:
    """Used from the event loop only."""

    def __init__(self, api: StatusWriter, node_name: str, clock: Clock, inventory: Callable[[], Inventory]) -> None:
        self._api = api
        self._manager = f"{DRIVER_NAME}/{node_name}"[:_MANAGER_LENGTH]
        self._clock = clock
        self._inventory = inventory
        self._claims: dict[str, _Followed] = {}
        self._draining: frozenset[str] = frozenset()
        self._complaints = Complaints(log, "write status.devices of claims")
        self._woken = asyncio.Event()
        self._unsupported = False

    # --- what others tell ---
    def follow(self, claims: Iterable[ClaimRecord], draining: Collection[str] = ()) -> None:
        """These are prepared now and no others; one that was is shown without devices from now on."""
        self._draining = frozenset(draining)
        prepared = {record.uid: record for record in claims if not records.is_adopted(record)}
        for uid, record in prepared.items():
            ref = ClaimRef(uid, record.namespace, record.name)
            followed = self._claims.setdefault(uid, _Followed(ref, ()))
            followed.devices = records.recorded_devices(record)
        for uid in self._claims.keys() - prepared.keys():
            self._claims[uid].devices = ()
        self._woken.set()

    def observe(self, claim: Json) -> None:
        """To be called with every state of a prepared claim that a watch shows."""
        followed = self._claims.get(claim["metadata"]["uid"])
        if followed is not None and followed.saw(claim):
            self._woken.set()

    def gone(self, uid: str) -> None:
        """To be called when a watch shows that the claim was deleted."""
        self._claims.pop(uid, None)

    def looked(self) -> None:
        """To be called after every look at the hardware."""
        self._woken.set()

    # --- work ---
    async def run(self) -> None:
        """For ever."""
        while True:
            pause = await self._pass()
            woken = asyncio.ensure_future(self._woken.wait())
            if pause is None:
                await woken
            else:
                await wait_for_any(self._clock, woken, pause, cancel=True)
            self._woken.clear()

    async def _pass(self) -> float | None:
        """Writes what is due; the seconds until more is, None when that takes news."""
        if self._unsupported:
            return None
        self._forget_what_is_over()
        pending = [(followed, entries) for followed in self._claims.values() if (entries := self._to_write(followed))]
        now = self._clock.monotonic()
        slots = asyncio.Semaphore(AT_ONCE)
        due = [(followed, *entries) for followed, entries in pending if followed.not_before <= now]
        await asyncio.gather(*(self._write(slots, *work) for work in due))
        self._forget_what_is_over()
        later = [followed.not_before for followed in self._claims.values() if followed.not_before > now]
        return max(min(later) - self._clock.monotonic(), 0.0) if later else None

    def _forget_what_is_over(self) -> None:
        """Claims that have ended and show nothing of ours, as far as was seen."""
        for uid, followed in list(self._claims.items()):
            if not followed.devices and (not followed.shown or followed.failures >= TRIES_AFTER_THE_END):
                del self._claims[uid]

    def _to_write(self, followed: _Followed) -> tuple[Mapping[Key, Entry], Entries] | None:
        """What is wanted and what is shown, where these differ in a way that a write may change."""
        inventory = self._inventory()
        if followed.shown is None or (followed.devices and not inventory.driver_version):
            return None
        entries = wanted(followed.devices, inventory, self._draining)
        if agree(entries, followed.shown) or followed.settled == (entries, followed.shown):
            followed.not_before = 0.0
            return None
        return entries, followed.shown

    async def _write(
        self, slots: asyncio.Semaphore, followed: _Followed, entries: Mapping[Key, Entry], before: Entries
    ) -> None:
        ref = followed.ref
        async with slots:
            try:
                answer = await self._api.apply(
                    RESOURCE_CLAIMS,
                    ref.name,
                    body(ref.uid, entries, before, self._clock.now()),
                    namespace=ref.namespace,
                    field_manager=self._manager,
                    subresource="status",
                )
            except NotFound:
                self._claims.pop(ref.uid, None)
            except ApiError as error:
                self._failed(followed, error)
            else:
                self._written(followed, entries, answer)

    def _written(self, followed: _Followed, entries: Mapping[Key, Entry], answer: Json) -> None:
        self._complaints.healed()
        followed.backoff.reset()
        followed.failures, followed.not_before = 0, 0.0
        followed.saw(answer)
        after = followed.shown or {}
        followed.settled = entries, after
        if entries and not shown(answer):
            self._unsupported = True
            log.warning("%s", _UNSUPPORTED)

    def _failed(self, followed: _Followed, error: ApiError) -> None:
        """What is refused as invalid is most often a claim that was deallocated in this moment."""
        if isinstance(error, Invalid) and not followed.devices:
            self._claims.pop(followed.ref.uid, None)
            return
        delay = followed.backoff.next(error.retry_after)
        followed.failures += 1
        followed.not_before = self._clock.monotonic() + delay
        if followed.failures > 1 or not isinstance(error, Invalid):
            self._complaints.failed(error, delay)
