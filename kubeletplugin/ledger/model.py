"""The ledger's rows as frozen values.

Devices are kept by UUID as well as by name: a name may come to mean another device once nothing refers to it, a UUID
never does. Times are ISO 8601 in UTC, for people; nothing but what people are told is
ever decided by comparing them with a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Route(StrEnum):
    """By which way a workload came to its device."""

    CLAIM = "claim"
    CLASSIC = "classic"


class HoldState(StrEnum):
    """``draining``: released by its holder, but processes may be left on it."""

    HELD = "held"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """A device as a hold names it.

    ``whole_gpu`` tells a full GPU, which overlaps with everything on it, from a partition, which overlaps with the
    GPU and itself. ``share_id`` marks a share of a device that several claims may be allocated. ``admin`` access
    neither holds nor is held; it is kept so that names stay bound and people see it.
    """

    name: str
    uuid: str
    gpu_uuid: str
    whole_gpu: bool
    share_id: str = ""
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim by its UID, or on the classic route the container's allocation."""

    route: Route
    id: str
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Hold:
    """``pods`` are, while draining, the UIDs of those that may still have processes; empty while held, when the
    claim's own list counts."""

    id: int
    device: HeldDevice
    holder: Holder
    state: HoldState
    since: str
    reason: str = ""
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A prepared claim.

    ``fingerprint`` identifies the allocation that was prepared. ``result`` is the answer and what is needed to write
    the CDI file anew, as JSON that only prepare/ reads. ``cdi_names`` are the names in force, ``aliases`` older ones
    that the kubelet still lists. ``boot_id`` is the boot in which the file was written, ``epoch`` the lease's.
    ``pods`` are all that ever used the claim while it was prepared: that set only grows.
    """

    uid: str
    namespace: str
    name: str
    fingerprint: str
    result: str
    cdi_names: tuple[str, ...]
    aliases: tuple[str, ...]
    boot_id: str
    epoch: int
    prepared_at: str
    pods: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Drain:
    """What is left of a hold that its holder let go: the device and the pods that may still be on it."""

    device: HeldDevice
    pods: frozenset[str]
    reason: str


@dataclass(frozen=True, slots=True)
class Intent:
    """A side effect outside the ledger, written down before it is done. ``undo`` says how to take it back."""

    id: int
    kind: str
    target: str
    undo: Mapping[str, Any]
    done: bool
    boot_id: str
    claim_uid: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment."""

    boot_id: str
    claims: tuple[ClaimRecord, ...] = ()
    holds: tuple[Hold, ...] = ()
    intents: tuple[Intent, ...] = ()
    bindings: Mapping[str, str] = field(default_factory=dict)
    verdicts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
