"""What a kubelet remembers of claims, and its checkpoint file dra_manager_state.

The reference is written to disk before a plugin is called and goes after Unprepare has succeeded, so the file lists
every claim for which an Unprepare will still come. The flag "prepared" is in memory only: a restarted kubelet calls
Prepare again. A repeated Prepare appends its devices (to Kubernetes 1.36) or replaces them (from 1.37 on).
"""

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubeletplugin.pb.dra.v1 import api_pb2 as v1

STATE_FILE = "dra_manager_state"


@dataclass
class ClaimInfo:
    uid: str
    namespace: str
    name: str
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[v1.Device]] = field(default_factory=dict)
    prepared: bool = False

    def wire(self) -> v1.Claim:
        return v1.Claim(uid=self.uid, namespace=self.namespace, name=self.name)

    def cdi_ids(self) -> list[str]:
        return [name for devices in self.drivers.values() for device in devices for name in device.cdi_device_ids]


class ClaimCache:
    """Claims by (namespace, name), as the kubelet keys them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.claims: dict[tuple[str, str], ClaimInfo] = {}

    def load(self) -> None:
        """As at a kubelet's start: what the checkpoint says, nothing prepared."""
        self.claims = {}
        if self._path.exists():
            data = json.loads(json.loads(self._path.read_text())["Data"])
            for item in data["ClaimInfoStateList"] or []:
                info = from_checkpoint(item)
                self.claims[info.namespace, info.name] = info

    def sync(self) -> None:
        data = json.dumps(
            {
                "kind": "DRACheckpoint",
                "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
                "ClaimInfoStateList": [to_checkpoint(info) for info in self.claims.values()] or None,
            },
            separators=(",", ":"),
        )
        checkpoint = {"Data": data, "Checksum": zlib.crc32(data.encode())}
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        temporary.write_text(json.dumps(checkpoint, separators=(",", ":")))
        temporary.rename(self._path)


def to_checkpoint(info: ClaimInfo) -> dict[str, Any]:
    return {
        "ClaimUID": info.uid,
        "ClaimName": info.name,
        "Namespace": info.namespace,
        "PodUIDs": {pod: {} for pod in sorted(info.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": device.pool_name,
                        "DeviceName": device.device_name,
                        "ShareID": device.share_id if device.HasField("share_id") else None,
                        "RequestNames": list(device.request_names),
                        "CDIDeviceIDs": list(device.cdi_device_ids),
                    }
                    for device in devices
                ]
                or None
            }
            for driver, devices in info.drivers.items()
        },
    }


def from_checkpoint(item: dict[str, Any]) -> ClaimInfo:
    drivers = {
        driver: [
            v1.Device(
                pool_name=device["PoolName"],
                device_name=device["DeviceName"],
                share_id=device["ShareID"],
                request_names=device["RequestNames"] or [],
                cdi_device_ids=device["CDIDeviceIDs"] or [],
            )
            for device in state["Devices"] or []
        ]
        for driver, state in item["DriverState"].items()
    }
    return ClaimInfo(item["ClaimUID"], item["Namespace"], item["ClaimName"], set(item["PodUIDs"]), drivers)
