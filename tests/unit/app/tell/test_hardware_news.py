"""Withdrawn and returned devices: which sentences, when they are said again and when they end in silence."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from kubeletplugin.app.tell.hardware_news import tell
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, Notice, WithheldGpu

LOST = WithheldGpu(3, "GPU-3", "0000:03:00.0", "the GPU is lost")
HUNG = replace(LOST, reason="NVML gave no answer within 5 s")
NAMELESS = WithheldGpu(3, "", "", "NVML doesn't answer for it")
NAMED_BY_PLACE = replace(NAMELESS, pci_bus_id="0000:03:00.0")
OUT = replace(LOST, reason="excluded: bad fan", excluded=True)


def device(uuid: str = "GPU-3", problem: str = "") -> Device:
    kind = DeviceKind.GPU if uuid == "GPU-3" else DeviceKind.MIG
    return Device(f"name-of-{uuid}", kind, uuid, "GPU-3", 3, 3, "0000:03:00.0", {}, {}, problem=problem)


@dataclass
class People:
    """Who hear the news, from the start of one instance to the next."""

    told: Mapping[str, str] = field(default_factory=dict)

    def hear(
        self, *devices: Device, withheld: tuple[WithheldGpu, ...] = (), notices: tuple[str, ...] = ()
    ) -> list[str]:
        inventory = Inventory("580.1", devices, withheld, notices=tuple(Notice("", text) for text in notices))
        said, self.told = tell(self.told, inventory)
        assert tell(self.told, inventory) == ([], self.told), "said twice"
        return [f"{'!' if it.warning else ''}{it.reason}: {it.note}" for it in said]


@pytest.mark.parametrize(
    ("gpu", "name"), [(LOST, "GPU-3"), (HUNG, "GPU-3"), (NAMED_BY_PLACE, "0000:03:00.0"), (NAMELESS, "3")]
)
def test_a_gpu_is_withheld_and_returns(gpu: WithheldGpu, name: str) -> None:
    people = People()
    assert people.hear(withheld=(gpu,)) == [f"!GPUWithheld: GPU {name} isn't offered: {gpu.reason}"]
    assert people.hear(device()) == [f"GPUReturned: GPU {name} is offered again"]


@pytest.mark.parametrize("silent", [replace(LOST, uuid=""), replace(LOST, uuid="", pci_bus_id="")])
def test_a_lost_gpu_that_a_new_agent_cant_name_is_the_one_of_its_place(silent: WithheldGpu) -> None:
    people = People()
    people.hear(withheld=(LOST,))
    other = replace(silent, index=4, pci_bus_id=silent.pci_bus_id and "0000:04:00.0")
    assert people.hear(withheld=(silent, other)) == [
        f"!GPUWithheld: GPU {other.pci_bus_id or 4} isn't offered: the GPU is lost"
    ]
    assert people.hear(device(), withheld=(other,)) == ["GPUReturned: GPU GPU-3 is offered again"]


def test_a_gpu_that_says_who_it_is_is_nobody_elses_place() -> None:
    people = People()
    people.hear(withheld=(LOST,))
    moved, silent = replace(LOST, index=4), WithheldGpu(3, "", "", "the GPU is lost")
    assert people.hear(withheld=(silent, moved)) == ["!GPUWithheld: GPU 3 isn't offered: the GPU is lost"]


def test_another_reason_is_news() -> None:
    people = People()
    people.hear(withheld=(LOST,))
    assert people.hear(withheld=(HUNG,)) == [f"!GPUWithheld: GPU GPU-3 isn't offered: {HUNG.reason}"]


def test_what_the_operator_wanted_is_no_warning() -> None:
    people = People()
    assert people.hear(withheld=(OUT,)) == ["GPUWithheld: GPU GPU-3 isn't offered: excluded: bad fan"]
    assert people.hear(device()) == ["GPUReturned: GPU GPU-3 is offered again"]


def test_a_gpu_whose_partition_is_offered_again_has_returned() -> None:
    people = People()
    people.hear(withheld=(LOST,))
    assert people.hear(device("MIG-1")) == ["GPUReturned: GPU GPU-3 is offered again"]


def test_a_gpu_that_was_taken_out_ends_in_silence() -> None:
    people = People()
    people.hear(withheld=(LOST,))
    assert people.hear() == []


def test_a_partition_that_was_destroyed_in_use() -> None:
    people = People()
    assert people.hear(device("MIG-1"), device("MIG-2", "the MIG layout was changed")) == [
        "!DeviceWithdrawn: device name-of-MIG-2 (MIG-2) isn't offered any more: the MIG layout was changed"
    ]
    assert people.hear(device("MIG-1")) == [], "its holder has gone, and it with him"


def test_a_device_that_can_be_given_again() -> None:
    people = People()
    people.hear(device("MIG-2", "the MIG layout was changed"))
    assert people.hear(device("MIG-2")) == ["DeviceReturned: device name-of-MIG-2 (MIG-2) is offered again"]


def test_a_held_device_of_a_withheld_gpu_is_told_of_once() -> None:
    people = People()
    assert people.hear(device(problem="the GPU is lost"), withheld=(LOST,)) == [
        "!GPUWithheld: GPU GPU-3 isn't offered: the GPU is lost"
    ]


def test_a_notice_is_told_once_while_it_holds() -> None:
    people = People()
    heard = [people.hear(notices=notices) for notices in (("one", "two"), ("two",), ("one", "two"))]
    assert heard == [["!GPUNotice: one", "!GPUNotice: two"], [], ["!GPUNotice: one"]]
