"""What is said of devices that other plugins have given out: once, and only what is so."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kubeletplugin.app.tell.classic_news import Finding, tell
from kubeletplugin.classic.checkpoint import Allocated
from kubeletplugin.classic.holds import ClassicHold
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.ledger.model import HeldDevice, Hold, Holder, HoldState, Route
from tests.unit.classic.node import HELD, INVENTORY, UUID

GONE = Inventory("580")
TAKEN = Finding(INVENTORY, HELD)
FREE = Finding(INVENTORY, {})
HOLD = Hold(
    1,
    HeldDevice("gpu-0", UUID, UUID, True),
    Holder(Route.CLAIM, "uid-claim", "team", "claim"),
    HoldState.HELD,
    "2026-01-02T03:04:05+00:00",
)
TWICE = replace(TAKEN, claimed=[HOLD])
NAMELESS = replace(FREE, nameless=[Allocated("uid-1", "c", "nvidia.com/gpu", frozenset())])
BLIND = replace(FREE, blind="read it: Input/output error")


def reasons(*findings: Finding) -> list[list[str]]:
    """Of each of these findings, one after the other."""
    told: Mapping[str, str] = {}
    heard = []
    for finding in findings:
        said, told = tell(told, finding)
        heard.append([sentence.reason for sentence in said])
    return heard


@pytest.mark.parametrize(
    ("findings", "heard"),
    [
        ([TAKEN, TAKEN, FREE], [["DeviceTaken"], [], ["DeviceReturned"]]),
        # A GPU that is lost, or whose driver is loaded anew: its pod may have it all the same.
        ([TAKEN, Finding(GONE, {}), TAKEN, FREE], [["DeviceTaken"], [], [], ["DeviceReturned"]]),
        ([TWICE, TWICE, TAKEN, FREE], [["DeviceTaken", "DeviceHeldTwice"], [], [], ["DeviceReturned"]]),
        ([TAKEN, TWICE, Finding(GONE, {}), TWICE], [["DeviceTaken"], ["DeviceHeldTwice"], [], []]),
        ([BLIND, BLIND, FREE], [["DeviceCheckpointUnreadable"], [], ["DeviceCheckpointRead"]]),
        ([TAKEN, BLIND, TAKEN], [["DeviceTaken"], ["DeviceCheckpointUnreadable"], ["DeviceCheckpointRead"]]),
        ([NAMELESS, NAMELESS, FREE, NAMELESS], [["DeviceUnknown"], [], [], ["DeviceUnknown"]]),
        ([FREE], [[]]),
    ],
)
def test_each_is_said_once(findings: list[Finding], heard: list[list[str]]) -> None:
    assert reasons(*findings) == heard


def test_one_resource_without_names_is_one_sentence() -> None:
    entries = [Allocated(f"uid-{index}", "c", "nvidia.com/gpu", frozenset()) for index in range(3)]
    assert reasons(replace(FREE, nameless=entries)) == [["DeviceUnknown"]]


def test_both_who_have_a_gpu_are_named() -> None:
    said, _ = tell({}, TWICE)
    assert said[1].warning
    assert said[1].note == (
        "device gpu-0 is held twice: claim team/claim has it, and another device plugin gave it out as nvidia.com/gpu "
        "to pod team/train; delete one of their pods, and let either this driver or that plugin have the GPU"
    )


def test_a_pod_without_a_name_is_known_by_its_uid() -> None:
    said, _ = tell({}, Finding(INVENTORY, {UUID: ClassicHold("nvidia.com/gpu", {"uid-1": "", "uid-2": "team/b"})}))
    assert said[0].note == (
        "device gpu-0 isn't offered: pod team/b, uid-1 has it as nvidia.com/gpu, by another device plugin"
    )
