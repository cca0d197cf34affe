"""What people hear of: which Event, on which object, as a warning or not, and nothing twice."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kubeapi.client import Json, Resource
from kubeapi.errors import Unreachable
from kubeapi.events import EventRecorder
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.app.watch.pods import PodRecord, read_pod
from kubeletplugin.inventory.model import Inventory, Notice, WithheldGpu
from kubeletplugin.ledger.model import HeldDevice, Hold, Holder, HoldState, Route
from kubeletplugin.prepare.model import ClaimRef
from kubeletplugin.prepare.ports import OverdueDrain
from kubeletplugin.slices.compare import DroppedField, DroppedFieldsError
from kubeletplugin.slices.validate import Problem
from tests.fakes.clock import VirtualClock
from tests.unit.app.metrics.exposition import scraped

pytestmark = pytest.mark.anyio

BAD = WithheldGpu(3, "GPU-3", "0000:61:00.0", "NVML doesn't say its memory")
OUT = WithheldGpu(4, "GPU-4", "0000:9d:00.0", "excluded: bad fan", excluded=True)


def drain(device: HeldDevice, pids: Mapping[str, frozenset[int]] | None = None) -> OverdueDrain:
    hold = Hold(1, device, Holder(Route.CLAIM, "uid-1"), HoldState.DRAINING, "2026-01-02T03:04:05+00:00")
    return OverdueDrain(hold, pids or {}, "processes are left")


class Written:
    """Implements kubeapi.events.EventWriter."""

    def __init__(self) -> None:
        self.events: list[Json] = []

    async def create(self, resource: Resource, body: Json, *, namespace: str = "") -> Json:
        self.events.append({**body, "written to": namespace})
        return body

    async def merge_patch(self, resource: Resource, name: str, body: Json, *, namespace: str = "") -> Json:
        return body


class Node:
    def __init__(self) -> None:
        self._api = Written()
        self._recorder = EventRecorder(self._api, controller="gpu.nvidia.com", instance="node-a", clock=VirtualClock())
        self.pods: dict[str, PodRecord] = {}
        self.metrics = Metrics()
        self.notices = NodeNotices(self._recorder, "node-a", self.pods.get, self.metrics)

    async def events(self) -> list[Json]:
        """Since the last call."""
        await self._recorder.flush()
        found, self._api.events = self._api.events, []
        return found

    async def said(self) -> list[tuple[str, str, str]]:
        return [(event["type"], event["reason"], event["note"]) for event in await self.events()]


@pytest.fixture
def node() -> Node:
    return Node()


def seen(*withheld: WithheldGpu, notices: tuple[str, ...] = ()) -> Inventory:
    return Inventory("580.1", withheld=withheld, notices=tuple(Notice("", text) for text in notices))


async def test_trouble_with_the_hardware_is_told_once(node: Node) -> None:
    node.notices.inventory_changed(seen(BAD, OUT, notices=("one",)))
    node.notices.inventory_changed(seen(BAD, OUT, notices=("one",)))
    assert await node.said() == [
        ("Warning", "GPUWithheld", "GPU GPU-3 isn't offered: NVML doesn't say its memory"),
        ("Normal", "GPUWithheld", "GPU GPU-4 isn't offered: excluded: bad fan"),
        ("Warning", "GPUNotice", "one"),
    ]
    following = Node()
    following.notices.take_up(node.notices.told)
    following.notices.inventory_changed(seen(BAD, notices=("one", "two")))
    assert await following.said() == [("Warning", "GPUNotice", "two")]


async def test_a_driver_in_trouble_is_told_once_across_restarts_and_so_is_its_end(node: Node) -> None:
    for problem in ("", "nvmlInit_v2: UNKNOWN: see the kernel log", "nvmlInit_v2: UNKNOWN: see the kernel log"):
        node.notices.driver_trouble(problem)
    assert await node.said() == [
        ("Warning", "DriverTrouble", "the node's GPUs can't be used: nvmlInit_v2: UNKNOWN: see the kernel log")
    ]
    following = Node()
    following.notices.take_up(node.notices.told)
    assert following.notices.told == node.notices.told
    following.notices.driver_trouble("nvmlInit_v2: UNKNOWN: see the kernel log")
    following.notices.driver_trouble("")
    assert await following.said() == [("Normal", "DriverBack", "the driver answers for the node's GPUs again")]
    assert following.notices.told == {}


async def test_events_of_the_node_are_found_by_kubectl_describe_node(node: Node) -> None:
    node.notices.inventory_changed(seen(BAD))
    (event,) = await node.events()
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}
    assert event["written to"] == "default"


async def test_slices(node: Node) -> None:
    node.notices.not_published("node-a", Problem("gpu-0", "memory", "a quantity is wanted"))
    node.notices.fields_dropped(
        DroppedFieldsError("node-a", (DroppedField("devices.taints", "gpu-0"), DroppedField("devices.taints", "gpu-1")))
    )
    assert [(kind, reason) for kind, reason, _ in await node.said()] == [
        ("Warning", "DeviceNotPublished"),
        ("Warning", "SliceFieldsDropped"),
    ]
    node.notices.slice_written("create")
    for error in (RuntimeError("odd"), Unreachable("away"), Unreachable("away")):
        node.notices.sync_failed("node-a", error, 1.0)
    assert await node.said() == []
    counted = scraped(node.metrics.registry)
    assert counted.series("gpuclaim_slice_writes_total", "verb") == {("create",): 1}
    assert counted.series("gpuclaim_slice_sync_failures_total", "code") == {("internal",): 1, ("0",): 2}
    assert counted.value("gpuclaim_slice_left_out_total") == 1
    assert counted.value("gpuclaim_slice_dropped_fields_total") == 2
    assert not node.notices.accepted
    node.notices.accepted_changed(True)
    assert node.notices.accepted


async def test_what_the_checks_do_is_counted(node: Node) -> None:
    ref, device = ClaimRef("uid-1", "team", "train"), HeldDevice("gpu-0", "GPU-0", "GPU-0", True)
    node.notices.swept()
    node.notices.swept()
    node.notices.hold_ended(ref)
    node.notices.claim_healed(ref)
    node.notices.drains_overdue([drain(device)])
    node.notices.drains_overdue([drain(device)])
    counted = scraped(node.metrics.registry)
    assert counted.value("gpuclaim_sweeps_total") == 2
    assert counted.value("gpuclaim_holds_ended_by_check_total") == 1
    assert counted.value("gpuclaim_claims_healed_total") == 1
    assert counted.value("gpuclaim_drains_overdue_total") == 1


async def test_a_damaged_ledger_says_where_the_old_one_is(node: Node) -> None:
    node.notices.ledger_damaged("open the ledger /l.db: malformed", Path("/l.db.damaged-1"))
    ((kind, reason, note),) = await node.said()
    assert (kind, reason) == ("Warning", "LedgerDamaged")
    assert note == "open the ledger /l.db: malformed; it was set aside as /l.db.damaged-1 and begun anew"


async def test_a_long_drain_names_pods_and_processes_once_and_its_end_across_instances(node: Node) -> None:
    device = HeldDevice("gpu-0", "GPU-0", "GPU-0", True)
    pids = {"pod-1": frozenset({9, 7}), "pod-2": frozenset({8})}
    node.notices.drains_overdue([drain(device, pids)])
    node.notices.drains_overdue([drain(device, {"pod-1": frozenset({9})})])
    note = "device gpu-0 has been draining for long: processes are left (pod pod-1: pid 7, 9; pod pod-2: pid 8)"
    assert await node.said() == [("Warning", "DeviceDraining", note)]
    following = Node()
    following.notices.take_up(node.notices.told)
    following.notices.drains_overdue([drain(device, pids)])
    assert await following.said() == []
    following.notices.drains_overdue([])
    assert await following.said() == [("Normal", "DeviceFree", "device gpu-0 doesn't drain any more: it is free again")]
    assert following.notices.told == {}


async def test_a_strangers_file_is_told_once_across_instances_and_again_when_it_came_back(node: Node) -> None:
    node.notices.foreign_cdi_files(["file x does harm"])
    following = Node()
    following.notices.take_up(node.notices.told)
    following.notices.foreign_cdi_files(["file x does harm"])
    assert await following.said() == []
    following.notices.foreign_cdi_files([])
    following.notices.foreign_cdi_files(["file x does harm"])
    assert await following.said() == [("Warning", "ForeignCDIFile", "file x does harm")]


@pytest.mark.parametrize(("pods", "named"), [(["pod-b", "pod-a"], "pod-a, pod-b"), ([], "none known")])
async def test_a_moved_claim_of_unknown_pods_is_told_on_the_claim(node: Node, pods: list[str], named: str) -> None:
    node.notices.claim_moved(ClaimRef("uid-1", "team", "train"), pods)
    (event,) = await node.events()
    assert event["regarding"]["kind"] == "ResourceClaim"
    assert (event["regarding"]["name"], event["written to"], event["type"]) == ("train", "team", "Warning")
    assert f"delete the pods that use it ({named})" in event["note"]


async def test_a_moved_claim_is_told_on_each_pod(node: Node) -> None:
    for uid in ("pod-a", "pod-b"):
        node.pods[uid] = read_pod({"metadata": {"uid": uid, "name": f"{uid}-name", "namespace": "team"}})
    node.notices.claim_moved(ClaimRef("uid-1", "team", "train"), ["pod-b", "pod-a", "pod-x"])
    *told, rest = await node.events()
    assert [event["regarding"] for event in told] == [
        {"apiVersion": "v1", "kind": "Pod", "name": f"{uid}-name", "namespace": "team", "uid": uid}
        for uid in ("pod-a", "pod-b")
    ]
    assert {event["note"] for event in told} == {
        "claim team/train was allocated to other devices while the kubelet has it prepared: delete this pod to move it"
    }
    assert [event["related"]["uid"] for event in told] == ["uid-1", "uid-1"]
    assert rest["regarding"]["kind"] == "ResourceClaim" and "(pod-x)" in rest["note"]


async def test_a_forgotten_claim_is_told_on_the_pod_that_is_stuck(node: Node) -> None:
    node.pods["pod-a"] = read_pod({"metadata": {"uid": "pod-a", "name": "a", "namespace": "team"}})
    node.notices.claim_forgotten(ClaimRef("uid-1", "team", "train"), ["pod-a"])
    (event,) = await node.events()
    assert (event["regarding"]["name"], event["reason"], event["type"]) == ("a", "ClaimForgotten", "Warning")
    assert event["note"].endswith("has been forgotten by it: delete this pod to start it")


async def test_a_moved_claim_whose_pods_change_is_one_series(node: Node) -> None:
    for pods in (["pod-a"], ["pod-a", "pod-b"]):
        node.notices.claim_moved(ClaimRef("uid-1", "team", "train"), pods)
    assert len(await node.events()) == 1
    node.notices.claim_moved(ClaimRef("uid-2", "team", "other"), ["pod-a"])
    assert len(await node.events()) == 1
