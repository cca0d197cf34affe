"""What preparing needs of the world, as narrow Protocols, and the bundle in which its parts pass them around."""

import asyncio
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kubeapi.client import Json, Resource
from kubeletplugin.cdi.api import ClaimSpecs
from kubeletplugin.clock import Clock
from kubeletplugin.fence import Fence
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import HeldDevice, Hold
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.kubelet_state import KubeletClaims
from kubeletplugin.prepare.model import ClaimRef

T = TypeVar("T")


class ClaimReader(Protocol):
    """The one call that preparing makes of the API server (see kubeapi.client.KubeApi)."""

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json: ...


class KubeletState(Protocol):
    """The kubelet's list of claims. Blocking file I/O; never raises: what can't be read lists everything."""

    def read(self, uid: str | None = None) -> KubeletClaims:
        """With ``uid`` the answer may be about that claim only."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at processes found.

    ``alive`` maps those of the pods asked for that have processes to their pids, ``on_device`` a device's UUID to any
    pods (asked for or not) with processes on it. ``blind`` says why the pods' cgroups couldn't be seen: then a pod
    that isn't in ``alive`` has not ended for that. ``blind_devices`` the same of devices. Blind is never "none".
    """

    alive: Mapping[str, frozenset[int]] = field(default_factory=dict)
    on_device: Mapping[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    blind: str = ""
    blind_devices: Mapping[str, str] = field(default_factory=dict)


class Processes(Protocol):
    """Where processes are looked for. Never raises: what can't be seen is said to be blind."""

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Look: ...


@dataclass(frozen=True, slots=True)
class OverdueDrain:
    """``pids`` by pod UID, as last seen."""

    hold: Hold
    pids: Mapping[str, frozenset[int]]
    reason: str


class OtherPlugins(Protocol):
    """What other device plugins of this node give out."""

    async def read(self) -> None:
        """Takes note of what they gave out until now, so that the inventory withholds it. Never raises."""


class NoOtherPlugins:
    """For where there are none."""

    async def read(self) -> None: ...


class Notices(Protocol):
    """What people should hear of (Events, taints, metrics). Must return at once and not raise."""

    def drains_overdue(self, drains: Collection[OverdueDrain]) -> None:
        """All drains that have gone on for long, at every look: each is said once, and that it isn't among them any
        more, across instances."""

    def claim_moved(self, ref: ClaimRef, pods: Collection[str]) -> None:
        """The claim was allocated to other devices while the kubelet believes it prepared: these pods (UIDs) start
        without them until they are deleted. Said once per allocation."""

    def claim_forgotten(self, ref: ClaimRef, pods: Collection[str]) -> None:
        """These pods (UIDs) joined the claim while it was being unprepared, and the kubelet has forgotten it: they
        can't start containers until they are deleted. Said once per Unprepare."""

    def swept(self) -> None:
        """All holds have been checked."""

    def hold_ended(self, ref: ClaimRef) -> None:
        """A check ended the claim's hold."""

    def claim_healed(self, ref: ClaimRef) -> None:
        """The claim, which the kubelet believes prepared, was prepared again unasked."""


class SilentNotices:
    """For where nobody listens."""

    def drains_overdue(self, drains: Collection[OverdueDrain]) -> None: ...

    def claim_moved(self, ref: ClaimRef, pods: Collection[str]) -> None: ...

    def claim_forgotten(self, ref: ClaimRef, pods: Collection[str]) -> None: ...

    def swept(self) -> None: ...

    def hold_ended(self, ref: ClaimRef) -> None: ...

    def claim_healed(self, ref: ClaimRef) -> None: ...


class Offload(Protocol):
    """Runs blocking work away from the event loop."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


async def in_thread(work: Callable[[], T], /) -> T:
    return await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Node:
    """This node, as every part of preparing sees it. ``claims_changed`` is to be called after each commit that makes a
    claim prepared or ends one, or ends a drain."""

    api: ClaimReader
    ledger: Ledger
    specs: ClaimSpecs
    inventory: Callable[[], Inventory]
    pool_name: str
    boot_id: str
    clock: Clock
    fence: Fence
    processes: Processes
    kubelet: KubeletState
    others: OtherPlugins
    notices: Notices
    offload: Offload
    claims_changed: Callable[[], None]

    async def kubelet_claims(self, uid: str | None = None) -> KubeletClaims:
        return await self.offload(functools.partial(self.kubelet.read, uid))
