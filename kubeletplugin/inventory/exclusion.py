"""GPUs that the operator keeps for something else.

A rule names a GPU by UUID or by PCI address in any usual spelling. The list is handed over anew with every look, so a
change needs no restart. An entry that matches nothing is reported, since it is most often a typing error that leaves
a GPU offered.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeletplugin.inventory import pci
from kubeletplugin.inventory.model import Notice

_UUID = re.compile(r"(?:gpu-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """``gpu`` as the operator wrote it; ``reason`` is shown wherever the GPU is missed."""

    gpu: str
    reason: str = ""

    def matches(self, uuid: str, pci_bus_id: str) -> bool:
        """``uuid`` and ``pci_bus_id`` as in the inventory; either may be empty when it couldn't be read."""
        wanted = _UUID.fullmatch(self.gpu.strip())
        if wanted is not None:
            return bool(uuid) and uuid.lower() == f"gpu-{wanted[1].lower()}"
        return bool(pci_bus_id) and pci.normalise(self.gpu) == pci_bus_id

    def explain(self) -> str:
        return "excluded by the operator" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells GPUs apart, as far as it could be read."""

    uuid: str
    pci_bus_id: str


def find(exclusions: Iterable[Exclusion], gpu: Identity) -> Exclusion | None:
    return next((rule for rule in exclusions if rule.matches(gpu.uuid, gpu.pci_bus_id)), None)


def unmatched(exclusions: Iterable[Exclusion], gpus: Sequence[Identity]) -> tuple[Notice, ...]:
    """One notice per entry that excludes none of ``gpus``, with what to change."""
    return tuple(
        Notice("", _why_unmatched(rule))
        for rule in exclusions
        if not any(rule.matches(gpu.uuid, gpu.pci_bus_id) for gpu in gpus)
    )


def _why_unmatched(rule: Exclusion) -> str:
    text = rule.gpu.strip()
    if text.lower().startswith("mig-"):
        return f"exclusion {rule.gpu!r} names a partition: name its GPU, by UUID or PCI address"
    if _UUID.fullmatch(text) is None and pci.normalise(text) is None:
        return f"exclusion {rule.gpu!r} is neither a GPU's UUID (GPU-...) nor a PCI address (0000:1b:00.0)"
    return f"exclusion {rule.gpu!r} matches no GPU of this node"
