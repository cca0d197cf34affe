"""The kubelet's checkpoint of its device manager: which pod was allocated which device of which extended resource.

Rewritten at each Allocate and after each ListAndWatch message, not when a pod ends. The checksum is one over the
kubelet's own memory layout and isn't checked: the file is put in place by a rename, whole. Format as of 1.34 to 1.37
(pkg/kubelet/cm/devicemanager/checkpoint), without a version in it; unknown fields are passed over.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from kubeletplugin.classic.tokens import VENDOR, tokens
from kubeletplugin.files import read_regular
from kubeletplugin.pb.deviceplugin.v1beta1 import api_pb2 as deviceplugin

FOLDER = "device-plugins"
FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Allocated:
    """A container's devices of one resource, as tokens; none where its ids and what Allocate answered name none."""

    pod_uid: str
    container: str
    resource: str
    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    """What may be of ours: devices that have a token, and NVIDIA's own resources. ``unreadable`` says why nothing is
    known. ``stamp`` differs between two versions of the file, also of the same content; None for no file."""

    allocated: tuple[Allocated, ...] = ()
    unreadable: str = ""
    stamp: tuple[int, int, int] | None = None


class Checkpoint(Protocol):
    """Blocking; never raises."""

    def read(self) -> DeviceCheckpoint: ...


class DeviceCheckpointFile:
    """The file of the kubelet with root directory ``kubelet_root``. Cheap to read as long as it doesn't change; by one
    thread at a time."""

    def __init__(self, kubelet_root: Path) -> None:
        self._root = kubelet_root
        self._last = DeviceCheckpoint()
        self.path = kubelet_root / FOLDER / FILE_NAME

    def read(self) -> DeviceCheckpoint:
        try:
            stat = self.path.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if stamp != self._last.stamp:
                self._last = replace(parse(read_regular(self.path)), stamp=stamp)
            return self._last
        except FileNotFoundError:
            # A kubelet that has never had a device plugin; without the root it is our own view that is wrong.
            return DeviceCheckpoint() if self._root.is_dir() else _unreadable(f"{self._root} doesn't exist")
        except OSError as error:
            return _unreadable(f"read {self.path}: {error.strerror}")


def parse(text: bytes) -> DeviceCheckpoint:
    try:
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or ()
        allocated = (_allocated(entry) for entry in entries)
        ours = tuple(entry for entry in allocated if entry.devices or entry.resource.startswith(VENDOR))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _unreadable(f"{FILE_NAME}: {type(error).__name__}: {error}")
    return DeviceCheckpoint(ours)


def _unreadable(why: str) -> DeviceCheckpoint:
    return DeviceCheckpoint(unreadable=why)


def _allocated(entry: Mapping[str, Any]) -> Allocated:
    ids = [device for devices in (entry["DeviceIDs"] or {}).values() for device in devices or ()]
    devices = tokens(ids, _texts(entry.get("AllocResp") or ""))
    return Allocated(entry["PodUID"], entry["ContainerName"], entry["ResourceName"], devices)


def _texts(encoded: str) -> Iterator[str]:
    """Of what the plugin answered to Allocate; none where that can't be read, which is no reason to know nothing."""
    try:
        answer = deviceplugin.ContainerAllocateResponse.FromString(base64.b64decode(encoded))
    except (ValueError, DecodeError):
        return
    yield from answer.envs.values()
    yield from answer.annotations.values()
    yield from (device.name for device in answer.cdi_devices)
    yield from (mount.container_path for mount in answer.mounts)
    yield from (device.host_path for device in answer.devices)
