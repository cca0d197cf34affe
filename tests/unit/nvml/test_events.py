"""Event sets."""

import json
import threading

import pytest

from kubeletplugin.nvml.api import EVENT_XID, NO_INSTANCE, Event, EventSet
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml
from kubeletplugin.nvml.simulated.state import EVENTS_KEPT, EventState, NodeState

SBE = 0x1
GPU_UNAVAILABLE = 0x4000


@pytest.fixture
def uuids(nvml: SimulatedNvml) -> list[str]:
    return [nvml.uuid(nvml.device_by_index(index)) for index in range(nvml.device_count())]


@pytest.fixture
def events(nvml: SimulatedNvml) -> EventSet:
    """A set that listens for Xids of every GPU but the last."""
    events = nvml.create_event_set()
    for index in range(7):
        events.register(nvml.device_by_index(index), EVENT_XID)
    return events


def drained(events: EventSet) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while True:
        try:
            event = events.wait(0)
        except NvmlError as e:
            assert e.code == NvmlCode.TIMEOUT
            return found
        found.append((event.uuid, event.data))


def test_events_come_in_order_to_every_set_that_registered(
    node: SimulatedNode, nvml: SimulatedNvml, events: EventSet, uuids: list[str]
) -> None:
    second = nvml.create_event_set()
    second.register(nvml.device_by_index(3), EVENT_XID)
    node.push_xid(3, 79)
    node.push_xid(1, 31)
    node.push_xid(7, 48)
    node.push_event(3, SBE)
    assert drained(events) == [(uuids[3], 79), (uuids[1], 31)]
    assert drained(second) == [(uuids[3], 79)]
    assert drained(events) == []


def test_what_was_before_the_registration_is_not_seen(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    node.push_xid(0, 79)
    events = nvml.create_event_set()
    events.register(nvml.device_by_index(0), EVENT_XID)
    assert drained(events) == []


def test_an_event_may_concern_a_partition(node: SimulatedNode, events: EventSet, uuids: list[str]) -> None:
    node.push_xid(2, 94, gpu_instance=7, compute_instance=0)
    node.push_xid(2, 13)
    assert events.wait(0) == Event(uuids[2], EVENT_XID, 94, 7, 0)
    assert events.wait(0) == Event(uuids[2], EVENT_XID, 13, NO_INSTANCE, NO_INSTANCE)


def test_an_event_written_by_hand_gets_its_number_from_the_first_reader(
    node: SimulatedNode, nvml: SimulatedNvml, events: EventSet, uuids: list[str]
) -> None:
    second = node.nvml()
    second.init()
    others = second.create_event_set()
    others.register(second.device_by_index(3), EVENT_XID)
    document = json.loads(node.store.path.read_text())
    document["events"].append({"gpu": 3, "xid": 79})
    node.store.path.write_text(json.dumps(document))
    assert drained(events) == [(uuids[3], 79)]
    assert drained(others) == [(uuids[3], 79)]
    assert [event.seq for event in node.state().events] == [1]


def test_a_waiting_set_sees_what_comes(node: SimulatedNode, events: EventSet, uuids: list[str]) -> None:
    timer = threading.Timer(0.01, node.push_xid, (3, 79))
    timer.start()
    assert events.wait(30_000).uuid == uuids[3]
    timer.join()


def test_a_lost_gpu_ends_the_wait_after_its_last_event(node: SimulatedNode, events: EventSet, uuids: list[str]) -> None:
    node.push_xid(3, 79)
    node.lose_gpu(3)
    assert events.wait(0).uuid == uuids[3]
    with pytest.raises(NvmlError) as raised:
        events.wait(0)
    assert raised.value.code == NvmlCode.GPU_IS_LOST


def test_freeing_a_set_ends_its_wait(nvml: SimulatedNvml, events: EventSet) -> None:
    timer = threading.Timer(0.01, events.free)
    timer.start()
    with pytest.raises(NvmlError) as raised:
        events.wait(30_000)
    assert raised.value.code == NvmlCode.INVALID_ARGUMENT
    timer.join()


def test_unsupported_types_are_refused(nvml: SimulatedNvml) -> None:
    events = nvml.create_event_set()
    gpu = nvml.device_by_index(0)
    assert not nvml.supported_event_types(gpu) & GPU_UNAVAILABLE
    with pytest.raises(NvmlError) as raised:
        events.register(gpu, EVENT_XID | GPU_UNAVAILABLE)
    assert raised.value.code == NvmlCode.NOT_SUPPORTED


def test_a_wait_can_fail(node: SimulatedNode, events: EventSet) -> None:
    node.inject_fault("system", "wait", NvmlCode.UNKNOWN, times=1)
    with pytest.raises(NvmlError) as raised:
        events.wait(0)
    assert raised.value.code == NvmlCode.UNKNOWN
    assert drained(events) == []


def test_the_file_keeps_only_the_latest(node: SimulatedNode) -> None:
    def fill(state: NodeState) -> None:
        state.events.extend(EventState(gpu=0, xid=number) for number in range(EVENTS_KEPT + 5))

    node.store.update(fill)
    assert [event.seq for event in node.state().events] == list(range(6, EVENTS_KEPT + 6))
    assert node.state().next_event == EVENTS_KEPT + 6
