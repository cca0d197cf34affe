"""Stored against wanted."""

from typing import Any

import pytest

from kubeapi.client import Json
from kubeletplugin.slices.compare import DroppedField, DroppedFieldsError, dropped_fields, keep_time_added, same_content
from kubeletplugin.slices.pool import SliceContent
from tests.unit.slices.samples import plain, taint

X = {"x": {"int": 1}}
T0, T1, T2 = "2026-12-01T10:00:00Z", "2026-12-01T10:00:01Z", "2026-12-01T10:00:02Z"


def memory(value: str) -> Json:
    return plain("a", capacity={"memory": {"value": value}})


def flag(**value: Any) -> Json:
    return plain("a", attributes={"x": value})


@pytest.mark.parametrize(
    ("stored", "wanted", "same"),
    [
        ([plain("a"), plain("b")], [plain("a"), plain("b")], True),
        ([plain("b"), plain("a")], [plain("a"), plain("b")], False),
        ([plain("a")], [plain("a"), plain("b")], False),
        ([], [], True),
        ([memory("80Gi")], [memory("81920Mi")], True),
        ([memory("80Gi")], [memory("81559Mi")], False),
        ([flag(int=1)], [flag(bool=True)], False),
        ([flag(int=1)], [flag(int=True)], False),
        ([flag(string="1")], [flag(string="1")], True),
        ([plain("a", bindsToNode=True)], [plain("a")], False),
        ([plain("a", taints=[taint(timeAdded=T0)])], [plain("a", taints=[taint()])], True),
        ([plain("a", taints=[taint(timeAdded=T0)])], [plain("a", taints=[taint(timeAdded=T1)])], True),
        ([plain("a", taints=[taint(timeAdded=T0)])], [plain("a", taints=[taint(timeAdded=T2)])], False),
        ([plain("a", taints=[taint("48")])], [plain("a", taints=[taint("79")])], False),
        ([plain("a")], [plain("a", taints=[taint()])], False),
        ([plain("a", taints=[taint()])], [plain("a")], False),
    ],
)
def test_same_content(stored: list[Json], wanted: list[Json], same: bool) -> None:
    spec = {"driver": "d", "nodeName": "n", "pool": {}, **({"devices": stored} if stored else {})}
    assert same_content(spec, SliceContent(tuple(wanted))) is same


def test_a_field_that_is_never_wanted_is_a_difference() -> None:
    assert not same_content({"perDeviceNodeSelection": True}, SliceContent())


def test_counters_are_compared_as_quantities() -> None:
    def counters(value: str) -> tuple[Json, ...]:
        return ({"name": "set", "counters": {"memory": {"value": value}}},)

    assert same_content({"sharedCounters": list(counters("1Gi"))}, SliceContent((), counters("1024Mi")))
    assert not same_content({"sharedCounters": list(counters("1Gi"))}, SliceContent((), counters("1G")))


def test_stored_times_are_kept_for_the_same_taint_only() -> None:
    stored = [plain("b", taints=[taint("48", timeAdded=T0), taint("79", timeAdded=T1)]), plain("c")]
    wanted = [
        plain("a", taints=[taint("79")]),
        plain("b", taints=[taint("79"), taint("48", "NoExecute"), taint("48", timeAdded=T2)]),
        plain("c", taints=[taint()]),
    ]
    assert keep_time_added(wanted, stored) == [
        plain("a", taints=[taint("79")]),
        plain("b", taints=[taint("79", timeAdded=T1), taint("48", "NoExecute"), taint("48", timeAdded=T2)]),
        plain("c", taints=[taint()]),
    ]


def test_dropped_fields_are_found_at_every_depth() -> None:
    sent: Json = {
        "sharedCounters": [{}],
        "devices": [
            plain("a", taints=[taint()], capacity={"memory": {"value": "1", "requestPolicy": {}}}),
            plain("b", consumesCounters=[{"counterSet": "s", "compatibilityGroups": ["x"]}], attributes=X),
            plain("c", taints=[taint()]),
        ],
    }
    kept: Json = {
        "devices": [
            plain("a", capacity={"memory": {"value": "1"}}),
            plain("b", consumesCounters=[{"counterSet": "s"}], attributes=X),
            plain("c", taints=[taint(timeAdded=T0)]),
        ]
    }
    assert dropped_fields(sent, kept) == (
        DroppedField("sharedCounters"),
        DroppedField("devices.capacity.requestPolicy", "a"),
        DroppedField("devices.taints", "a"),
        DroppedField("devices.consumesCounters.compatibilityGroups", "b"),
    )
    assert dropped_fields(sent, sent) == ()


def test_the_error_names_the_gates() -> None:
    error = DroppedFieldsError("node-1", [DroppedField("devices.taints", "a"), DroppedField("sharedCounters")])
    assert error.disabled_features == ("DRADeviceTaints", "DRAPartitionableDevices")
    assert "dropped devices.taints, sharedCounters (off: DRADeviceTaints, DRAPartitionableDevices)" in str(error)
    assert "unknown to it" in str(DroppedFieldsError("node-1", [DroppedField("devices.future", "a")]))
