"""What people should hear of devices that other plugins have given out, as sentences that stand until they end (see
hardware_news): each is said once, by whichever instance is active."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeletplugin.app.tell.hardware_news import Sentence
from kubeletplugin.classic.checkpoint import Allocated
from kubeletplugin.classic.holds import ClassicHold
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import Hold

_TAKEN, _TWICE, _NAMELESS, _BLIND = "taken", "twice", "nameless", "blind"


@dataclass(frozen=True, slots=True)
class Finding:
    """``taken`` is who has what, by the device's UUID, ``claimed`` claims' holds of those devices. ``blind`` and
    ``nameless`` as of classic.judge."""

    inventory: Inventory
    taken: Mapping[str, ClassicHold]
    claimed: Collection[Hold] = ()
    blind: str = ""
    nameless: Collection[Allocated] = ()


def tell(told: Mapping[str, str], found: Finding) -> tuple[list[Sentence], Mapping[str, str]]:
    """What to say, and what has been told then and stands: the next ``told``."""
    standing = _standing(found)
    said = [sentence for subject, sentence in standing.items() if subject not in told]
    stands = {subject: sentence.note for subject, sentence in standing.items()}
    for subject in sorted(told.keys() - standing.keys()):
        if _may_stand(subject, found):
            stands[subject] = told[subject]
        else:
            said += _ended(subject)
    return said, stands


def _standing(found: Finding) -> dict[str, Sentence]:
    sentences = {}
    devices = {device.uuid: device for device in found.inventory.devices if device.uuid in found.taken}
    for uuid, device in devices.items():
        hold = found.taken[uuid]
        note = f"device {device.name} isn't offered: {_pods(hold)} has it as {hold.resource}, by another device plugin"
        sentences[f"{_TAKEN}/{device.name}"] = Sentence("DeviceTaken", "Withhold", note, warning=True)
    for claim in found.claimed:
        hold, holder = found.taken[claim.device.uuid], claim.holder
        note = (
            f"device {claim.device.name} is held twice: claim {holder.namespace}/{holder.name} has it, and another "
            f"device plugin gave it out as {hold.resource} to {_pods(hold)}; delete one of their pods, and let either "
            "this driver or that plugin have the GPU"
        )
        subject = f"{_TWICE}/{claim.device.name}/{holder.id}"
        sentences[subject] = Sentence("DeviceHeldTwice", "Withhold", note, warning=True)
    for entry in found.nameless:
        note = (
            f"pod {entry.pod_uid} was given a device of {entry.resource} that names no GPU: if it is one, a claim may "
            "be given it, too; let the device plugin that has the resource use UUIDs as ids"
        )
        sentences.setdefault(f"{_NAMELESS}/{entry.resource}", Sentence("DeviceUnknown", "Withhold", note, warning=True))
    if found.blind:
        note = (
            f"no device is offered, since what other device plugins gave out isn't known: {found.blind}; a device "
            "plugin that is restarted makes the kubelet write that file anew"
        )
        sentences[_BLIND] = Sentence("DeviceCheckpointUnreadable", "Withhold", note, warning=True)
    return sentences


def _may_stand(subject: str, found: Finding) -> bool:
    """A device that isn't there now may be its holder's all the same."""
    kind, _, rest = subject.partition("/")
    if kind == _BLIND:
        return False
    name = rest.partition("/")[0]
    return bool(found.blind) or (kind in (_TAKEN, _TWICE) and found.inventory.by_name(name) is None)


def _ended(subject: str) -> list[Sentence]:
    kind, _, rest = subject.partition("/")
    if kind == _TAKEN:
        return [Sentence("DeviceReturned", "Offer", f"device {rest} isn't another device plugin's any more")]
    if kind == _BLIND:
        return [Sentence("DeviceCheckpointRead", "Offer", "what other device plugins gave out is known again")]
    return []


def _pods(hold: ClassicHold) -> str:
    """With their names, which may be seen in a Node's events."""
    return f"pod {', '.join(sorted({pod or uid for uid, pod in hold.pods.items()}))}"
