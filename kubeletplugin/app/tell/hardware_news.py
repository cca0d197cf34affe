"""What is wrong with the node's hardware, as sentences that stand until they end: each is said once.

What has been said is kept in the ledger, so that neither a restart nor an upgrade says it again, and a device that came
back meanwhile is told of, too. A GPU that is lost doesn't even say who it is to an agent that is new: it is then the
one that stood at its place. A sentence that ends without its device being offered again (the partition went with its
holder, the GPU was taken out) ends in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kubeletplugin.inventory.model import Device, Inventory, WithheldGpu

_GPU, _DEVICE, _NOTICE = "gpu", "device", "notice"


@dataclass(frozen=True, slots=True)
class Sentence:
    """``reason`` and ``action`` as of an Event."""

    reason: str
    action: str
    note: str
    warning: bool = False


def tell(told: Mapping[str, str], inventory: Inventory) -> tuple[list[Sentence], Mapping[str, str]]:
    """What to say, and what has been told then and stands: the next ``told``."""
    said: list[Sentence] = []
    left, stands = dict(told), {}
    # Those that say who they are first: no other may be taken for them.
    for gpu in sorted(inventory.withheld, key=lambda gpu: (not gpu.uuid, not gpu.pci_bus_id)):
        known = next((subject for subject in left if _same(subject, gpu)), "")
        subject = known if known and not gpu.uuid else _subject(gpu)
        stands[subject] = gpu.reason
        if left.pop(known, None) != gpu.reason:
            note = f"GPU {_name(subject)} isn't offered: {gpu.reason}"
            said.append(Sentence("GPUWithheld", "Withhold", note, warning=not gpu.excluded))
    for subject, sentence in _others(inventory).items():
        stands[subject] = sentence.note
        if left.pop(subject, None) != sentence.note:
            said.append(sentence)
    for subject in sorted(left):
        said += _ended(subject, inventory)
    return said, stands


def _others(inventory: Inventory) -> dict[str, Sentence]:
    withheld = {gpu.uuid for gpu in inventory.withheld}
    found = {}
    for device in inventory.devices:
        if device.problem and device.gpu_uuid not in withheld:
            note = f"device {device.name} ({device.uuid}) isn't offered any more: {device.problem}"
            found[f"{_DEVICE}/{device.uuid}"] = Sentence("DeviceWithdrawn", "Withhold", note, warning=True)
    for notice in inventory.notices:
        found[f"{_NOTICE}/{notice.text}"] = Sentence("GPUNotice", "Inventory", notice.text, warning=True)
    return found


def _ended(subject: str, inventory: Inventory) -> list[Sentence]:
    kind, _, rest = subject.partition("/")
    offered = [device for device in inventory.devices if not device.problem]
    if kind == _GPU and any(_is_on(device, subject) for device in offered):
        return [Sentence("GPUReturned", "Offer", f"GPU {_name(subject)} is offered again")]
    if kind == _DEVICE:
        found = [device for device in offered if device.uuid == rest]
        return [Sentence("DeviceReturned", "Offer", f"device {it.name} ({it.uuid}) is offered again") for it in found]
    return []


def _subject(gpu: WithheldGpu) -> str:
    return f"{_GPU}/{gpu.uuid}/{gpu.pci_bus_id}/{gpu.index}"


def _identity(subject: str) -> tuple[str, str, str]:
    """UUID, PCI address and index, as far as they are known."""
    _, uuid, address, index = subject.split("/")
    return uuid, address, index


def _name(subject: str) -> str:
    uuid, address, index = _identity(subject)
    return uuid or address or index


def _same(subject: str, gpu: WithheldGpu) -> bool:
    if not subject.startswith(f"{_GPU}/"):
        return False
    uuid, address, index = _identity(subject)
    if uuid and gpu.uuid:
        return uuid == gpu.uuid
    if address and gpu.pci_bus_id:
        return address == gpu.pci_bus_id
    return index == str(gpu.index)


def _is_on(device: Device, subject: str) -> bool:
    uuid, address, index = _identity(subject)
    if uuid:
        return device.gpu_uuid == uuid
    return device.pci_bus_id == address if address else str(device.index) == index
