"""A node on which another device plugin has given the only GPU to a pod: what each source says of it."""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.classic.checkpoint import DeviceCheckpointFile
from kubeletplugin.classic.holds import ClassicHold
from kubeletplugin.classic.judge import ClassicJudge
from kubeletplugin.classic.pod_resources import PodDevices, Used
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.ports import Look

UUID = "GPU-7f3a67a4-2b96-5e83-94da-2651e3f36cac"
INVENTORY = Inventory("580", (Device("gpu-0", DeviceKind.GPU, UUID, UUID, 0, 0, "0000:1b:00.0", {}, {}),))
TRAIN = ("team", "train")
AGENT = ("gpuclaim", "agent")
HELD = {UUID: ClassicHold("nvidia.com/gpu", {"uid-train": "team/train"})}
AS_GIVEN_OUT = {UUID: ClassicHold("nvidia.com/gpu", {"uid-train": ""})}
"""What the checkpoint alone tells, before the API server's pods are known."""


def record(uid: str, name: tuple[str, str], phase: str = "Running", *, deleting: bool = False) -> PodRecord:
    namespace, pod = name
    return PodRecord(
        uid=uid,
        namespace=namespace,
        name=pod,
        phase=phase,
        deleting=deleting,
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
    current: bool = True
    alive: dict[str, frozenset[int]] = field(default_factory=dict)
    blind: str = ""
    own_pod: str = "uid-agent"
    lists: int = 0

    def __post_init__(self) -> None:
        self.file = DeviceCheckpointFile(self.root)
        self.file.path.parent.mkdir()
        self.known["uid-agent"] = record("uid-agent", AGENT)
        self.judge = ClassicJudge(self.file, self, self, self, self.own_pod)

    async def list(self) -> PodDevices | None:
        self.lists += 1
        return self.listed

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Look:
        return Look({pod: pids for pod, pids in self.alive.items() if pod in pods}, {}, self.blind)

    def get(self, uid: str) -> PodRecord | None:
        return self.known.get(uid)

    def records(self) -> Collection[PodRecord]:
        return self.known.values()

    def allocate(self, *pods: str, resource: str = "nvidia.com/gpu", id: str = UUID) -> None:
        entries = [
            {"PodUID": pod, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": {"0": [id]}} for pod in pods
        ]
        self.write(json.dumps({"Data": {"PodDeviceEntries": entries}, "Checksum": 0}))

    def write(self, text: str) -> None:
        self.file.path.with_suffix(".tmp").write_text(text)
        self.file.path.with_suffix(".tmp").rename(self.file.path)

    def run_pod(self) -> None:
        """As a healthy node tells of a pod that has the GPU classically."""
        self.allocate("uid-train")
        self.listed = PodDevices(frozenset({TRAIN, AGENT}), (Used(TRAIN, "nvidia.com/gpu", frozenset({UUID})),))
        self.known["uid-train"] = record("uid-train", TRAIN)
        self.alive = {"uid-train": frozenset({1, 2})}

    def end_pod(self) -> None:
        """All traces go, but for the checkpoint's."""
        self.listed, self.alive = PodDevices(frozenset({AGENT})), {}
        del self.known["uid-train"]

    async def looks(self, count: int = 2) -> dict[str, ClassicHold]:
        for _ in range(count):
            await self.judge.look()
        return dict(self.judge.holds)

    @property
    def problem(self) -> str:
        """Why the GPU may not be given to a claim."""
        return self.judge.withhold(INVENTORY).devices[0].problem
