"""What preparing needs of CDI (implemented by cdi.claims.ClaimSpecFiles)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kubeletplugin.inventory.model import Device


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device of a claim as its CDI spec defines it; ``cdi_name`` is a pure function of claim and device (and of
    the share id where there is one)."""

    cdi_name: str
    device: Device
    env: Mapping[str, str] = field(default_factory=dict)


class ClaimSpecs(Protocol):
    """The claims' CDI files. Blocking file I/O of a few hundred bytes; every rename and unlink is fenced."""

    def cdi_name(self, claim_uid: str, device_name: str, share_id: str | None = None) -> str: ...

    def device_ids(self, cdi_name: str) -> tuple[str, ...]:
        """Qualified ids for one device: the claim's own first, then the driver's."""

    def write(self, claim_uid: str, devices: Sequence[ClaimDevice], aliases: Sequence[str] = ()) -> bool:
        """Writes or rewrites the claim's file with node numbers read now; True when it was made or changed.
        ``aliases`` are older cdi names of the claim that the kubelet still lists (R_ALIAS): defined with a harmless
        env and no device. Raises ClaimError when a device node is missing and can't be made, NotActiveError,
        RecoverableError on I/O errors.
        """

    def remove(self, claim_uid: str) -> None:
        """Missing is success."""

    def exists(self, claim_uid: str) -> bool: ...

    def claim_uids(self) -> frozenset[str]:
        """Claims that have a file."""
