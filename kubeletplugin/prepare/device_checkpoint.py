"""The kubelet's checkpoint of its device manager: which pod was allocated which device of which extended resource.

Rewritten at each Allocate and after each ListAndWatch message, not when a pod ends. The checksum is one over the
kubelet's own memory layout and isn't checked: the file is put in place by a rename, whole. Format as of 1.34 to 1.37
(pkg/kubelet/cm/devicemanager/checkpoint), without a version in it; unknown fields are passed over.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from kubeletplugin.files import read_regular
from kubeletplugin.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin
from kubeletplugin.prepare.classic import VENDOR, tokens

FOLDER = "device-plugins"
FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Allocated:
    """A container's devices of one resource, as tokens (see classic)."""

    pod_uid: str
    container: str
    resource: str
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    """NVIDIA's resources only. ``unreadable`` says why nothing is known."""

    allocated: tuple[Allocated, ...] = ()
    unreadable: str = ""


class Checkpoint(Protocol):
    """Blocking; never raises."""

    def read(self) -> DeviceCheckpoint: ...


class DeviceCheckpointFile:
    """The file of the kubelet with root directory ``kubelet_root``."""

    def __init__(self, kubelet_root: Path) -> None:
        self.path = kubelet_root / FOLDER / FILE_NAME

    def read(self) -> DeviceCheckpoint:
        try:
            text = read_regular(self.path)
        except FileNotFoundError:
            # Until the first device plugin registers.
            return DeviceCheckpoint()
        except OSError as error:
            return DeviceCheckpoint(unreadable=f"read {self.path}: {error.strerror}")
        return parse(text)


def parse(text: bytes) -> DeviceCheckpoint:
    try:
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or ()
        ours = [entry for entry in entries if entry["ResourceName"].startswith(VENDOR)]
        return DeviceCheckpoint(tuple(map(_allocated, ours)))
    except (ValueError, KeyError, TypeError, AttributeError, DecodeError) as error:
        return DeviceCheckpoint(unreadable=f"{FILE_NAME}: {type(error).__name__}: {error}")


def _allocated(entry: Mapping[str, Any]) -> Allocated:
    ids = [device for devices in (entry["DeviceIDs"] or {}).values() for device in devices or ()]
    answer = deviceplugin.ContainerAllocateResponse.FromString(base64.b64decode(entry.get("AllocResp") or ""))
    return Allocated(entry["PodUID"], entry["ContainerName"], entry["ResourceName"], tokens(ids, _texts(answer)))


def _texts(answer: deviceplugin.ContainerAllocateResponse) -> Iterator[str]:
    yield from answer.envs.values()
    yield from answer.annotations.values()
    yield from (device.name for device in answer.cdi_devices)
    yield from (mount.container_path for mount in answer.mounts)
    yield from (device.host_path for device in answer.devices)
