"""What is wrong with the node's hardware, as sentences that stand until they end: each is said once.

What has been said is kept in the ledger, so that neither a restart nor an upgrade says it again, and a device that came
back meanwhile is told of, too. A sentence that ends without its device being offered again (the partition is gone with
its holder, the GPU was taken out) ends in silence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kubeletplugin.inventory.model import Device, Inventory, WithheldGpu

_GPU, _DEVICE, _NOTICE = "gpu/", "device/", "notice/"


@dataclass(frozen=True, slots=True)
class Sentence:
    """``reason`` and ``action`` as of an Event."""

    reason: str
    action: str
    note: str
    warning: bool


def standing(inventory: Inventory) -> Mapping[str, Sentence]:
    """By subject."""
    found: dict[str, Sentence] = {}
    for gpu in inventory.withheld:
        note = f"GPU {_name(gpu)} isn't offered: {gpu.reason}"
        found[_GPU + _name(gpu)] = Sentence("GPUWithheld", "Withhold", note, warning=not gpu.excluded)
    withheld = {gpu.uuid for gpu in inventory.withheld}
    for device in inventory.devices:
        if device.problem and device.gpu_uuid not in withheld:
            note = f"device {device.name} ({device.uuid}) isn't offered any more: {device.problem}"
            found[_DEVICE + device.uuid] = Sentence("DeviceWithdrawn", "Withhold", note, warning=True)
    for notice in inventory.notices:
        found[_NOTICE + notice.text] = Sentence("GPUNotice", "Inventory", notice.text, warning=True)
    return found


def news(told: Mapping[str, str], now: Mapping[str, Sentence], inventory: Inventory) -> Iterator[Sentence]:
    """What to say, given the notes that were ``told`` by subject."""
    for subject, sentence in now.items():
        if told.get(subject) != sentence.note:
            yield sentence
    for subject in sorted(told.keys() - now.keys()):
        if subject.startswith(_GPU):
            name = subject.removeprefix(_GPU)
            if any(_is_on(device, name) for device in inventory.devices if not device.problem):
                yield Sentence("GPUReturned", "Offer", f"GPU {name} is offered again", warning=False)
        elif subject.startswith(_DEVICE):
            device = inventory.by_uuid(subject.removeprefix(_DEVICE))
            if device is not None and not device.problem:
                note = f"device {device.name} ({device.uuid}) is offered again"
                yield Sentence("DeviceReturned", "Offer", note, warning=False)


def _name(gpu: WithheldGpu) -> str:
    return gpu.uuid or gpu.pci_bus_id or str(gpu.index)


def _is_on(device: Device, gpu: str) -> bool:
    return gpu in (device.gpu_uuid, device.pci_bus_id, str(device.index))
