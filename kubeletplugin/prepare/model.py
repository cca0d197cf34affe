"""What the kubelet asks of us and what we answer, free of any wire format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim. The claim's own CDI id comes first: pod health is keyed by it."""

    request_names: tuple[str, ...]
    pool_name: str
    device_name: str
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class PrepareResult:
    """``error`` is empty on success; else it is shown in the pod's event and ``devices`` is empty."""

    devices: tuple[PreparedDevice, ...] = ()
    error: str = ""


class ClaimHandler(Protocol):
    """Implemented by prepare.ClaimManager, called by dra's services, by claim UID, exactly one answer per claim.

    Never raises for what concerns one claim. NotActiveError means that this instance lost the lease (or is
    yielding): the caller passes the claims to the active instance.
    """

    async def prepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, PrepareResult]:
        """``deadline`` is a Clock.monotonic() value by which the answer must be out."""

    async def unprepare(self, claims: Sequence[ClaimRef], deadline: float) -> Mapping[str, str]:
        """Claim UID to error text, empty on success."""
