"""A look at both of the kubelet's sources, and what it takes to believe that a pod has let go."""

import asyncio
import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeletplugin.app.watch.classic_watch import ClassicWatch
from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.classic import ClassicHold
from kubeletplugin.prepare.device_checkpoint import DeviceCheckpointFile
from kubeletplugin.prepare.pod_resources import PodDevices, Used
from kubeletplugin.prepare.ports import Look
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

UUID = "GPU-7f3a67a4-2b96-5e83-94da-2651e3f36cac"
INVENTORY = Inventory("580", (Device("gpu-0", DeviceKind.GPU, UUID, UUID, 0, 0, "0000:1b:00.0", {}, {}),))
TRAIN = ("team", "train")
AGENT = ("gpuclaim", "agent")
HELD = {"gpu-0": ClassicHold("nvidia.com/gpu", {"uid-train": "team/train"})}


def record(uid: str, name: tuple[str, str], phase: str = "Running") -> PodRecord:
    namespace, pod = name
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=pod,
        phase=phase,
        deleting=False,
        started=True,
        created="",
        claims={},
        extended_claim="",
        containers=(),
        attaches=False,
        wakes=0,
    )


@dataclass
class Node:
    """The kubelet's word, the API server's, and the processes there are."""

    root: Path
    listed: PodDevices | None = field(default_factory=PodDevices)
    known: dict[str, PodRecord] = field(default_factory=dict)
    alive: dict[str, frozenset[int]] = field(default_factory=dict)
    blind: str = ""
    told: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    own_pod: str = ""
    lists: int = 0

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.file = DeviceCheckpointFile(self.root)
        self.file.path.parent.mkdir()
        self.watch = ClassicWatch(
            self.file, self, self, self, self.own_pod, self.clock, lambda uid, pods: self.told.append((uid, pods))
        )

    async def list(self) -> PodDevices | None:
        self.lists += 1
        return self.listed

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Look:
        return Look({pod: pids for pod, pids in self.alive.items() if pod in pods}, {}, self.blind)

    def get(self, uid: str) -> PodRecord | None:
        return self.known.get(uid)

    def records(self) -> Collection[PodRecord]:
        return self.known.values()

    def allocate(self, *pods: str) -> None:
        entries = [
            {"PodUID": pod, "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": [UUID]}}
            for pod in pods
        ]
        text = json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 0})
        self.file.path.with_suffix(".tmp").write_text(text)
        self.file.path.with_suffix(".tmp").rename(self.file.path)

    def run_pod(self) -> None:
        """As a healthy node tells of a pod that has the GPU classically."""
        self.allocate("uid-train")
        self.listed = PodDevices(frozenset({TRAIN, AGENT}), (Used(TRAIN, "nvidia.com/gpu", frozenset({UUID})),))
        self.known = {"uid-train": record("uid-train", TRAIN)}
        self.alive = {"uid-train": frozenset({1, 2})}

    def end_pod(self) -> None:
        """All traces go, but for the checkpoint's."""
        self.listed, self.known, self.alive = PodDevices(frozenset({AGENT})), {}, {}

    async def looks(self, count: int = 2) -> dict[str, ClassicHold]:
        for _ in range(count):
            await self.watch.look()
        return dict(self.watch.taken(INVENTORY))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_one_that_runs_holds_its_gpu(node: Node) -> None:
    node.run_pod()
    assert await node.looks(1) == HELD
    assert node.watch.withhold(INVENTORY).devices[0].problem
    assert node.watch.changed.is_set() and node.watch.looked.is_set()


@pytest.mark.parametrize("source", ["checkpoint", "pod-resources"])
async def test_either_source_is_enough(node: Node, source: str) -> None:
    node.run_pod()
    if source == "checkpoint":
        node.listed = PodDevices(frozenset({TRAIN}))  # an init container has it
    else:
        node.allocate()
    assert await node.looks(5) == HELD


async def test_it_is_over_when_both_have_let_go(node: Node) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.allocate()
    node.watch.changed.clear()
    assert await node.looks(1) == HELD
    assert not node.watch.changed.is_set()
    assert await node.looks(1) == {}
    assert node.watch.changed.is_set()


async def test_an_entry_of_a_pod_that_has_ended_does_not_count(node: Node) -> None:
    """The kubelet doesn't rewrite its checkpoint for that."""
    node.run_pod()
    await node.looks()
    node.end_pod()
    assert await node.looks() == {}


async def test_nor_does_one_that_was_there_before_the_agent(node: Node) -> None:
    node.allocate("uid-train")
    assert await node.looks(1) == {}
    assert not node.watch.changed.is_set()


@pytest.mark.parametrize("sign", ["process", "blind", "no list", "own pod missing", "active"])
async def test_a_sign_of_life_keeps_it(node: Node, sign: str) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    match sign:
        case "process":
            node.alive = {"uid-train": frozenset({1})}
        case "blind":
            node.blind = "no host PIDs"
        case "no list":
            node.listed = None
        case "own pod missing":
            node.watch._own_pod = "uid-agent"
            node.known["uid-agent"] = record("uid-agent", ("gpuclaim", "other"))
        case "active":
            node.known["uid-train"] = record("uid-train", TRAIN)
            node.listed = PodDevices(frozenset({TRAIN, AGENT}))
    assert (await node.looks(5)).keys() == {"gpu-0"}


async def test_a_pod_that_the_api_has_not_told_of_yet_is_known_by_its_uid(node: Node) -> None:
    node.run_pod()
    node.known, node.alive = {}, {}
    (hold,) = (await node.looks()).values()
    assert "uid-train" in hold.pods and "team/train" in hold.pods


async def test_a_finished_pod_has_let_go(node: Node) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.known["uid-train"] = record("uid-train", TRAIN, "Succeeded")
    assert await node.looks() == {}


async def test_a_checkpoint_that_cannot_be_read_ends_nothing_and_is_said_once(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.run_pod()
    await node.looks()
    node.end_pod()
    node.file.path.write_text("{")
    assert await node.looks(5) == HELD
    assert len(caplog.messages) == 1


async def test_pods_of_our_claims_are_told_by_their_uids(node: Node) -> None:
    node.known = {"uid-train": record("uid-train", TRAIN)}
    node.listed = PodDevices(frozenset({TRAIN}), (), {"claim-1": frozenset({TRAIN, ("team", "unknown")})})
    await node.looks(1)
    assert node.told == [("claim-1", frozenset({"uid-train"}))]


async def test_looks_come_at_a_change_soon_in_doubt_and_rarely_else(node: Node) -> None:
    task = asyncio.create_task(node.watch.run())
    await node.watch.looked.wait()

    async def looks_within(seconds: int) -> int:
        before = node.lists
        for _ in range(seconds):
            await node.clock.until_asleep()
            await node.clock.advance(1)
        return node.lists - before

    await looks_within(3)  # the watch's own beginning counts as a change
    assert await looks_within(90) == 3
    node.run_pod()
    async with asyncio.timeout(10):
        await node.watch.changed.wait()
    await looks_within(3)
    node.end_pod()
    assert await looks_within(40) == 2
    assert node.watch.taken(INVENTORY) == {}
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
