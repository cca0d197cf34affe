"""What outlives the agent on a node: API server, kubelet's list, CDI files, processes and who has the lease."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeapi import errors as api_errors
from kubeapi.client import Json
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.prepare.kubelet_state import KubeletClaim
from kubeletplugin.prepare.model import ClaimRef, PreparedDevice

DRIVER = "gpu.nvidia.com"
POOL = "node-1"
PREFIX = "k8s.gpu.nvidia.com/claim="


def full_gpu(index: int) -> Device:
    name = f"gpu-{index}"
    return Device(name, DeviceKind.GPU, f"GPU-{index}", f"GPU-{index}", index, index, f"0000:{index:02x}:00.0", {}, {})


def partition(index: int, part: int) -> Device:
    name = f"gpu-{index}-mig-1g.10gb-19-{part}"
    return Device(name, DeviceKind.MIG, f"MIG-{index}-{part}", f"GPU-{index}", index, index, "", {}, {})


def result(device: str, request: str = "gpu", **more: Any) -> Json:
    return {"request": request, "driver": DRIVER, "pool": POOL, "device": device, **more}


def answered(name: str, uid: str, request: str = "gpu", share: str | None = None) -> PreparedDevice:
    """A device as a good answer has it."""
    own = f"{PREFIX}{uid}-{name}" + (f"-{share}" if share else "")
    return PreparedDevice((request,), POOL, name, (own, "k8s.gpu.nvidia.com/driver=all"), share)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class File:
    """A claim's CDI file: its names, each with the GPU or partition behind it, none for an alias."""

    devices: dict[str, str]
    boot: str


@dataclass
class World:
    path: Path
    gpus: int = 2
    boot_id: str = "boot-1"
    claims: dict[tuple[str, str], Json] = field(default_factory=dict)
    api_error: api_errors.ApiError | None = None
    api_delay: float = 0.0
    write_error: Exception | None = None
    ledger_error: Exception | None = None
    """Of every commit, once an agent has taken over: what fails there is the caller's to repeat."""
    kubelet: dict[str, KubeletClaim] = field(default_factory=dict)
    kubelet_unreadable: str = ""
    files: dict[str, File] = field(default_factory=dict)
    processes: dict[str, set[int]] = field(default_factory=dict)
    on_device: dict[str, dict[str, frozenset[int]]] = field(default_factory=dict)
    blind: str = ""
    blind_devices: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    notices: list[tuple[str, ...]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lease_lost: bool = False
    holder: object = None
    """Who has the lease: the last one that was started."""
    changes: int = 0
    _actions: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.inventory = Inventory("580.0", tuple(full_gpu(index) for index in range(self.gpus)))

    # --- the API server ---
    def allocate(
        self, name: str, *devices: str | Json, uid: str = "", pods: Sequence[str] = (), **more: Any
    ) -> ClaimRef:
        """Allocates (anew) the claim of this name in namespace ``ns``, ``ns2/name`` in another."""
        namespace, _, name = name.rpartition("/")
        namespace = namespace or "ns"
        results = [result(device) if isinstance(device, str) else device for device in devices]
        uid = uid or f"uid-{name}"
        status: Json = {
            "allocation": {"devices": {"results": results, **more}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods or (f"pod-{name}",)],
        }
        metadata = {"namespace": namespace, "name": name, "uid": uid}
        self.claims[namespace, name] = {"metadata": metadata, "status": status}
        return ClaimRef(uid, namespace, name)

    def reserve(self, ref: ClaimRef, *pods: str) -> None:
        self.claims[ref.namespace, ref.name]["status"]["reservedFor"] = [
            {"resource": "pods", "name": pod, "uid": pod} for pod in pods
        ]

    def deallocate(self, ref: ClaimRef) -> None:
        self.claims[ref.namespace, ref.name]["status"] = {}

    def delete(self, ref: ClaimRef) -> None:
        del self.claims[ref.namespace, ref.name]

    # --- the kubelet ---
    def list_in_kubelet(self, ref: ClaimRef, *pods: str, ids: Sequence[str] = ()) -> None:
        self.kubelet[ref.uid] = KubeletClaim(ref.uid, ref.namespace, ref.name, frozenset(pods), tuple(ids))

    # --- steps ---
    def at(self, step: str, action: Callable[[], object]) -> None:
        """``action`` happens once, just before the next step of this name."""
        self._actions.append((step, action))

    def step(self, name: str) -> None:
        self.steps.append(name)
        for entry in self._actions:
            if entry[0] == name:
                self._actions.remove(entry)
                entry[1]()
                return

    def gpu_of(self, ref: ClaimRef) -> set[str]:
        """What a container would get that resolves all names of the claim's file."""
        found = self.files.get(ref.uid)
        return {device for device in found.devices.values() if device} if found else set()
