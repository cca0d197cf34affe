"""A claim's status shows its devices: written once, only where it differs, and never in anybody's way."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubeapi.client import Json, Resource
from kubeapi.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from kubeletplugin.app.tell.claim_status import ClaimStatuses
from kubeletplugin.app.tell.claim_status_entries import agree, body, shown, wanted
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, MigIdentity
from kubeletplugin.ledger.model import ClaimRecord
from kubeletplugin.prepare.record import RecordedDevice
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

NODE = "node-1"
GPU = Device("gpu-0", DeviceKind.GPU, "GPU-0", "GPU-0", 0, 0, "0000:1b:00.0", {}, {})
PARTITION = replace(
    GPU, name="gpu-0-mig", kind=DeviceKind.MIG, uuid="MIG-0", mig=MigIdentity("1g.10gb", 19, 0, 1, 7, 0)
)
HEALTHY = Inventory("580.1", (GPU,), answered=frozenset({"GPU-0"}))
DATA = {"uuid": "GPU-0", "pciBusID": "0000:1b:00.0", "driverVersion": "580.1"}
PREPARED = "the device is prepared for this claim and works as far as NVML tells"
RECORDED = RecordedDevice(NODE, "gpu-0", "", "GPU-0")


def ready(status: str, reason: str, message: str, since: str = "2026-01-02T03:04:05Z") -> Json:
    return {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def entry(data: Json | None = None, **more: Any) -> Json:
    conditions = more.pop("conditions", [ready("True", "Prepared", PREPARED)])
    key = {"driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
    return {**key, "data": DATA if data is None else data, "conditions": conditions, **more}


# --- what a claim should show ---
@pytest.mark.parametrize(
    ("inventory", "draining", "expected"),
    [
        (HEALTHY, (), ("True", "Prepared", PREPARED)),
        (
            replace(HEALTHY, lost=frozenset({"GPU-0"})),
            (),
            ("False", "DeviceUnhealthy", "the GPU is lost: reset it or reboot the node"),
        ),
        (
            replace(HEALTHY, answered=frozenset()),
            (),
            ("Unknown", "DeviceUnknown", "NVML gave no answer for this GPU in the last look"),
        ),
        (replace(HEALTHY, devices=(replace(GPU, problem="bent pin"),)), (), ("False", "DeviceUnhealthy", "bent pin")),
        (HEALTHY, ("GPU-0",), ("False", "Draining", "processes of a former holder may still be on the device")),
        (replace(HEALTHY, lost=frozenset({"GPU-0"})), ("GPU-0",), ("False", "DeviceUnhealthy", None)),
    ],
    ids=["healthy", "lost", "no answer", "problem", "draining", "lost and draining"],
)
def test_ready_says_what_is_known(inventory: Inventory, draining: tuple[str, ...], expected: Any) -> None:
    (found,) = wanted([RECORDED], inventory, draining).values()
    status, reason, message = expected
    assert (found.status, found.reason, found.message) == (status, reason, message or found.message)
    assert found.data == DATA


def test_a_device_that_is_not_here_any_more() -> None:
    (found,) = wanted([RECORDED], Inventory("580.1"), ()).values()
    assert (found.status, found.message) == ("False", "the device isn't on this node any more")
    assert found.data == {"uuid": "GPU-0", "driverVersion": "580.1"}


def test_a_partition_tells_its_gpu() -> None:
    inventory = replace(HEALTHY, devices=(PARTITION,))
    (found,) = wanted([RecordedDevice(NODE, "gpu-0-mig", "", "MIG-0")], inventory, ()).values()
    assert found.data == {**DATA, "uuid": "MIG-0", "parentUUID": "GPU-0"}


def test_each_share_is_an_entry_and_two_requests_of_one_device_are_one() -> None:
    share = "0b0e5f9e-3d5e-4ff8-9ac1-6a3bd8b6f0ce"
    entries = wanted([RECORDED, RECORDED, replace(RECORDED, share_id=share)], HEALTHY, ())
    devices = body("uid", entries, {}, VirtualClock().now())["status"]["devices"]
    assert [device.get("shareID") for device in devices] == [None, share]


def test_the_body_is_strict_json_with_the_uid_and_ours_alone() -> None:
    entries = wanted([RECORDED], HEALTHY, ())
    written = body("uid", entries, {}, VirtualClock().now())
    assert written == {"metadata": {"uid": "uid"}, "status": {"devices": [entry()]}}
    assert json.loads(json.dumps(written, allow_nan=False)) == written


@pytest.mark.parametrize(
    ("before", "since"),
    [
        ({"status": "True", "reason": "Else", "message": ""}, "2020-01-01T00:00:00Z"),
        ({"status": "False", "reason": "Prepared", "message": PREPARED}, "2026-01-02T03:04:05Z"),
    ],
    ids=["status stays", "status changes"],
)
def test_the_time_of_transition_is_that_of_the_status(before: Json, since: str) -> None:
    old = ready(**before, since="2020-01-01T00:00:00Z")
    entries = wanted([RECORDED], HEALTHY, ())
    (device,) = body("uid", entries, {(NODE, "gpu-0", ""): entry(conditions=[old])}, VirtualClock().now())["status"][
        "devices"
    ]
    assert device["conditions"][0]["lastTransitionTime"] == since


@pytest.mark.parametrize(
    ("devices", "same"),
    [
        ([entry()], True),
        ([entry(networkData={"ips": []}), {**entry(), "driver": "nic.example.com"}], True),
        ([entry(conditions=[ready("True", "Prepared", PREPARED, "2020-01-01T00:00:00Z"), {"type": "Mine"}])], True),
        ([], False),
        ([entry({**DATA, "driverVersion": "570.1"})], False),
        ([entry(conditions=None)], False),
        ([entry(conditions=[ready("False", "Prepared", PREPARED)])], False),
        ([entry(), entry(device="gpu-1")], False),
        ([entry(shareID="s")], False),
    ],
)
def test_only_what_is_ours_and_differs_is_written(devices: list[Json], same: bool) -> None:
    assert agree(wanted([RECORDED], HEALTHY, ()), shown({"status": {"devices": devices}})) is same


# --- the reconciler ---
def record(name: str = "a", fingerprint: str = "f") -> ClaimRecord:
    device = {"request": "gpu", "pool": NODE, "device": "gpu-0", "uuid": "GPU-0", "share_id": None}
    result = json.dumps([device])
    return ClaimRecord(f"uid-{name}", "ns", name, fingerprint, result, (), (), "boot", 1, "2026-01-02T03:04:05+00:00")


@dataclass
class Server:
    """Applies whole bodies; ``drops`` as one without the field does."""

    claims: dict[str, Json] = field(default_factory=dict)
    calls: list[tuple[str, Json]] = field(default_factory=list)
    errors: list[ApiError] = field(default_factory=list)
    managers: set[str] = field(default_factory=set)
    drops: bool = False
    version: int = 10
    busy: int = 0
    busiest: int = 0
    gate: asyncio.Event | None = None

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Json,
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = True,
        subresource: str = "",
    ) -> Json:
        assert (resource.plural, namespace, subresource, force) == ("resourceclaims", "ns", "status", True)
        self.calls.append((name, body))
        self.managers.add(field_manager)
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        if self.gate is not None:
            await self.gate.wait()
        self.busy -= 1
        if self.errors:
            raise self.errors.pop(0)
        return self.store(name, body["status"].get("devices", []) if not self.drops else [])

    def store(self, name: str, devices: list[Json]) -> Json:
        self.version += 1
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        self.claims[name] = {"metadata": metadata, "status": {"devices": devices}}
        return self.claims[name]


@dataclass
class Node:
    server: Server = field(default_factory=Server)
    clock: VirtualClock = field(default_factory=VirtualClock)
    inventory: Inventory = HEALTHY

    def __post_init__(self) -> None:
        self.statuses = ClaimStatuses(self.server, NODE, self.clock, lambda: self.inventory)

    async def prepared(self, *names: str) -> None:
        """These claims are, and were seen without devices."""
        self.statuses.follow([record(name) for name in names])
        for name in names:
            self.statuses.observe(self.server.store(name, []))
        await self.clock.settle()

    async def look(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.statuses.looked()
        await self.clock.settle()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    task = asyncio.create_task(node.statuses.run())
    yield node
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_claim_is_written_once_it_was_seen(node: Node) -> None:
    node.statuses.follow([record()])
    await node.clock.settle()
    assert node.server.calls == []
    await node.prepared("a")
    assert node.server.claims["a"]["status"]["devices"] == [entry()]
    assert node.server.managers == {"gpu.nvidia.com/node-1"}
    node.statuses.observe(node.server.claims["a"])
    await node.look(HEALTHY)
    await node.prepared()
    assert len(node.server.calls) == 2  # written and, unprepared, taken away


async def test_one_that_shows_it_already_is_not_written(node: Node) -> None:
    node.statuses.follow([record()])
    node.statuses.observe(node.server.store("a", [entry()]))
    await node.clock.settle()
    assert node.server.calls == []


async def test_a_watch_that_lags_behind_a_write_is_not_believed(node: Node) -> None:
    before = node.server.store("a", [])
    await node.prepared("a")
    node.statuses.observe(before)
    await node.clock.settle()
    assert len(node.server.calls) == 1


async def test_ready_follows_the_device(node: Node) -> None:
    await node.prepared("a")
    await node.clock.advance(60)
    await node.look(replace(HEALTHY, lost=frozenset({"GPU-0"})))
    (device,) = node.server.claims["a"]["status"]["devices"]
    assert (device["conditions"][0]["status"], device["conditions"][0]["lastTransitionTime"]) == (
        "False",
        "2026-01-02T03:05:05Z",
    )
    await node.look(HEALTHY)
    (device,) = node.server.claims["a"]["status"]["devices"]
    assert device["conditions"][0]["status"] == "True"


async def test_nothing_is_said_before_the_hardware_was_seen(node: Node) -> None:
    node.inventory = Inventory("")
    await node.prepared("a")
    assert node.server.calls == []
    await node.look(HEALTHY)
    assert len(node.server.calls) == 1


async def test_an_unprepared_claim_loses_the_entries(node: Node) -> None:
    await node.prepared("a")
    node.statuses.follow([])
    await node.clock.settle()
    assert node.server.calls[1:] == [("a", {"metadata": {"uid": "uid-a"}, "status": {}})]
    await node.look(HEALTHY)
    assert len(node.server.calls) == 2


@pytest.mark.parametrize("how", ["deallocated", "deleted"])
async def test_one_that_lost_them_already_costs_no_write(node: Node, how: str) -> None:
    await node.prepared("a")
    if how == "deleted":
        node.statuses.gone("uid-a")
    else:
        node.statuses.observe(node.server.store("a", []))
    node.statuses.follow([])
    await node.clock.settle()
    assert len(node.server.calls) == 1


async def test_one_whose_devices_only_the_kubelet_knows_is_not_written(node: Node) -> None:
    node.statuses.follow([record(fingerprint="")])
    node.statuses.observe(node.server.store("a", []))
    await node.clock.settle()
    assert node.server.calls == []


@pytest.mark.parametrize(
    "error", [Unreachable("down"), Forbidden(403, "Forbidden", "no"), Invalid(422, "Invalid", "x")]
)
async def test_a_write_that_failed_is_tried_again_later_and_said_once(
    node: Node, error: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    node.server.errors = [error] * 4
    await node.prepared("a")
    assert len(node.server.calls) == 1
    await node.look(HEALTHY)
    assert len(node.server.calls) == 1
    await node.clock.advance(1)
    assert len(node.server.calls) == 2
    await node.clock.advance(60)
    (device,) = node.server.claims["a"]["status"]["devices"]
    assert device["data"] == DATA
    lines = [line for line in caplog.messages if line.startswith("write status.devices of claims")]
    assert len(lines) == 1
    assert "deploy/manifests" in lines[0] or not isinstance(error, Forbidden)


async def test_a_refusal_of_one_claim_holds_up_no_other(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.server.errors = [Invalid(422, "Invalid", "must be an allocated device in the claim")]
    await node.prepared("a", "b")
    assert node.server.claims["a"]["status"]["devices"] == []
    assert node.server.claims["b"]["status"]["devices"] == [entry()]
    assert caplog.messages == []


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "gone"), Invalid(422, "Invalid", "uid")])
async def test_entries_of_a_claim_that_is_gone_are_not_asked_for_again(node: Node, error: ApiError) -> None:
    await node.prepared("a")
    node.server.errors = [error]
    node.statuses.follow([])
    await node.clock.advance(3600)
    assert len(node.server.calls) == 2


async def test_entries_that_cannot_be_taken_away_are_given_up(node: Node) -> None:
    await node.prepared("a")
    node.server.errors = [Unreachable("down")] * 100
    node.statuses.follow([])
    await node.clock.advance(3600)
    assert len(node.server.calls) == 7


async def test_a_server_without_the_field_is_noticed_once_and_left_alone(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.server.drops = True
    await node.prepared("a")
    await node.prepared("a", "b")
    assert len(node.server.calls) == 1
    (line,) = caplog.messages
    assert "DRAResourceClaimDeviceStatus" in line


async def test_entries_that_others_applied_under_our_name_are_no_reason_to_write_for_ever(node: Node) -> None:
    strange = entry(device="gpu-7")

    await node.prepared("a")
    stored = node.server.store("a", [entry(), strange])
    original = node.server.store
    node.server.store = lambda name, devices: original(name, [*devices, strange])  # type: ignore[method-assign]
    node.statuses.observe(stored)
    await node.clock.settle()
    await node.look(HEALTHY)
    assert len(node.server.calls) == 2


async def test_few_writes_at_once(node: Node) -> None:
    node.server.gate = asyncio.Event()
    await node.prepared(*(f"c{number}" for number in range(20)))
    assert node.server.busy == 4
    node.server.gate.set()
    await node.clock.settle(200)
    assert len(node.server.calls) == 20
    assert node.server.busiest == 4
