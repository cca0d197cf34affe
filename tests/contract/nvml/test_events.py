"""Events: the real implementation over the mock library and the simulator deliver alike."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kubeletplugin.nvml.api import EVENT_XID, NO_INSTANCE, Event, Nvml
from kubeletplugin.nvml.errors import NvmlCode
from kubeletplugin.nvml.simulated import open_node
from kubeletplugin.nvml.simulated.profile import load_profile
from tests.contract.nvml.snapshot import outcome
from tests.nvmlmock.mock import MakeMock, OpenReal

H100 = load_profile("dgx-h100")
UUIDS = [gpu.uuid for gpu in H100.gpus]
PSTATE = 0x4
UNSUPPORTED_TYPE = 0x8000


@dataclass(frozen=True, slots=True)
class Machine:
    """An Nvml, and how its machine has an event: (GPU, type, data, GPU instance, compute instance)."""

    nvml: Nvml
    push: Callable[[int, int, int, int, int], None]

    def xid(self, gpu: int, xid: int) -> None:
        self.push(gpu, EVENT_XID, xid, NO_INSTANCE, NO_INSTANCE)


@pytest.fixture(params=["real", "simulated"])
def machine(
    request: pytest.FixtureRequest, make_mock: MakeMock, open_real_nvml: OpenReal, tmp_path: Path
) -> Iterator[Machine]:
    if request.param == "real":
        mock = make_mock(H100)
        yield Machine(open_real_nvml(mock), mock.push_event)
        return
    node = open_node("dgx-h100", tmp_path / "state")
    nvml = node.nvml()
    nvml.init()
    yield Machine(
        nvml,
        lambda gpu, kind, data, gi, ci: node.push_event(
            gpu, type=kind, data=data, gpu_instance=gi, compute_instance=ci
        ),
    )
    nvml.shutdown()


def test_an_xid_arrives(machine: Machine) -> None:
    events = machine.nvml.create_event_set()
    events.register(machine.nvml.device_by_index(3), EVENT_XID)
    machine.xid(3, 79)
    assert events.wait(0) == Event(UUIDS[3], EVENT_XID, 79)
    assert outcome(events.wait, 0) == NvmlCode.TIMEOUT
    events.free()


def test_events_keep_their_order_and_their_instance(machine: Machine) -> None:
    events = machine.nvml.create_event_set()
    for index in (0, 1):
        events.register(machine.nvml.device_by_index(index), EVENT_XID | PSTATE)
    machine.push(1, EVENT_XID, 31, 7, 0)
    machine.push(0, PSTATE, 0, NO_INSTANCE, NO_INSTANCE)
    machine.push(1, EVENT_XID, 94, 8, 1)
    assert [events.wait(0) for _ in range(3)] == [
        Event(UUIDS[1], EVENT_XID, 31, 7, 0),
        Event(UUIDS[0], PSTATE, 0),
        Event(UUIDS[1], EVENT_XID, 94, 8, 1),
    ]


def test_only_what_was_registered(machine: Machine) -> None:
    events = machine.nvml.create_event_set()
    machine.xid(2, 13)
    events.register(machine.nvml.device_by_index(2), EVENT_XID)
    machine.xid(5, 48)
    machine.push(2, PSTATE, 0, NO_INSTANCE, NO_INSTANCE)
    assert outcome(events.wait, 0) == NvmlCode.TIMEOUT


def test_every_set_gets_its_own_copy(machine: Machine) -> None:
    sets = [machine.nvml.create_event_set() for _ in range(2)]
    for events in sets:
        events.register(machine.nvml.device_by_index(4), EVENT_XID)
    machine.xid(4, 63)
    assert [events.wait(0).data for events in sets] == [63, 63]


def test_a_type_that_the_part_lacks(machine: Machine) -> None:
    events = machine.nvml.create_event_set()
    device = machine.nvml.device_by_index(0)
    assert outcome(events.register, device, EVENT_XID | UNSUPPORTED_TYPE) == NvmlCode.NOT_SUPPORTED


def test_a_wait_ends_when_something_happens(machine: Machine) -> None:
    events = machine.nvml.create_event_set()
    events.register(machine.nvml.device_by_index(6), EVENT_XID)
    timer = threading.Timer(0.02, machine.xid, (6, 119))
    timer.start()
    assert events.wait(10_000).data == 119
    timer.join()


def test_the_event_of_a_gpu_that_no_longer_answers(make_mock: MakeMock, open_real_nvml: OpenReal) -> None:
    """The Xid that says that a GPU is gone comes with a handle of that GPU."""
    mock = make_mock(H100)
    nvml = open_real_nvml(mock)
    events = nvml.create_event_set()
    events.register(nvml.device_by_index(3), EVENT_XID)
    mock.fault("*", 3, NvmlCode.GPU_IS_LOST)
    mock.push_event(3, EVENT_XID, 79)
    assert events.wait(0) == Event(UUIDS[3], EVENT_XID, 79)
