"""Model of a CDI specification file: what the runtime will do to a container, and the rules it holds files to.

Pure data, rendered to JSON with empty values left out, since the runtime's parser rejects unknown fields and compares
the stated version with the fields used. ``cdiVersion`` is therefore never chosen by hand: it is the smallest that the
fields need, so that the oldest runtime that can do the job reads the file. ``validate`` holds a file to the rules of
the CDI library (SPEC.md 1.1.0 and its validation) and to one more: a vendor or class of a single letter is refused,
because it makes CDI libraries up to 1.1.0, and with them containerd, panic at every start until the file is gone.

Edits of the file itself apply once to a container however many of its devices the container names; edits of a device
apply once per device. Hooks belong in the former.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kubeletplugin.errors import AgentError

BASE_VERSION = "0.3.0"
"""The oldest version that the library still accepts."""

_KIND_PART = re.compile(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")
_PERMISSIONS = re.compile(r"[rwm]*")

JsonObject = dict[str, object]


class SpecError(AgentError):
    """A CDI file that the runtime would refuse, or choke on; names the part."""


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A node made in the container at ``path``.

    With ``type`` and ``major`` given the runtime needs no node on the host. ``host_path`` is where that one is, when
    it isn't at ``path`` there. ``file_mode`` in the bits of chmod; ``permissions`` for the device cgroup, empty means
    all (``rwm``).
    """

    path: str
    host_path: str = ""
    type: Literal["", "b", "c", "u", "p"] = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


@dataclass(frozen=True, slots=True)
class Mount:
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True)
class Hook:
    """A program of the host run at a point of the container's life; ``args`` begin with the program's name."""

    name: Literal["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    env: Mapping[str, str] = field(default_factory=dict)
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.device_nodes or self.hooks or self.mounts or self.additional_gids)


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    edits: ContainerEdits


@dataclass(frozen=True, slots=True)
class Spec:
    """One file: devices of one kind (``vendor/class``)."""

    vendor: str
    class_: str
    devices: tuple[Device, ...]
    edits: ContainerEdits = field(default_factory=ContainerEdits)

    @property
    def kind(self) -> str:
        return f"{self.vendor}/{self.class_}"

    def all_edits(self) -> Iterator[ContainerEdits]:
        yield self.edits
        for device in self.devices:
            yield device.edits


def qualified_name(vendor: str, class_: str, device: str) -> str:
    """The id by which a container asks for a device."""
    return f"{vendor}/{class_}={device}"


def required_version(spec: Spec) -> str:
    """The smallest version whose readers know every field that ``spec`` uses."""
    edits = list(spec.all_edits())
    if any(e.additional_gids for e in edits):
        return "0.7.0"
    if "." in spec.class_:
        return "0.6.0"
    if any(d.name[:1].isdigit() for d in spec.devices) or any(n.host_path for e in edits for n in e.device_nodes):
        return "0.5.0"
    if any(m.type for e in edits for m in e.mounts):
        return "0.4.0"
    return BASE_VERSION


def render(spec: Spec) -> bytes:
    """The file's content: JSON, the same bytes for the same spec. Raises SpecError."""
    validate(spec)
    document: JsonObject = {
        "cdiVersion": required_version(spec),
        "kind": spec.kind,
        "devices": [{"name": d.name, "containerEdits": _edits(d.edits)} for d in spec.devices],
    }
    if spec.edits:
        document["containerEdits"] = _edits(spec.edits)
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _present(**fields: object) -> JsonObject:
    """Without what Go's omitempty leaves out too: a zero number is the reader's default."""
    return {name: value for name, value in fields.items() if value is not None and value not in ("", 0, [])}


def _edits(edits: ContainerEdits) -> JsonObject:
    return _present(
        env=[f"{key}={value}" for key, value in edits.env.items()],
        deviceNodes=[_device_node(node) for node in edits.device_nodes],
        hooks=[_hook(hook) for hook in edits.hooks],
        mounts=[_mount(mount) for mount in edits.mounts],
        additionalGids=list(edits.additional_gids),
    )


def _device_node(node: DeviceNode) -> JsonObject:
    rendered = _present(
        path=node.path,
        hostPath=node.host_path,
        type=node.type,
        major=node.major,
        minor=node.minor,
        permissions=node.permissions,
    )
    # Pointers in the reader: 0 is a value of its own.
    owned = {"fileMode": node.file_mode, "uid": node.uid, "gid": node.gid}
    return rendered | {name: value for name, value in owned.items() if value is not None}


def _hook(hook: Hook) -> JsonObject:
    return _present(hookName=hook.name, path=hook.path, args=list(hook.args), env=list(hook.env), timeout=hook.timeout)


def _mount(mount: Mount) -> JsonObject:
    return _present(
        hostPath=mount.host_path, containerPath=mount.container_path, options=list(mount.options), type=mount.type
    )


def validate(spec: Spec) -> None:
    """Raises SpecError for what the runtime would refuse, and for what would stop it."""
    for part, text in (("vendor", spec.vendor), ("class", spec.class_)):
        if not _KIND_PART.fullmatch(text):
            raise SpecError(
                f"validate CDI spec {spec.kind}: {part} {text!r} must be two or more of letters, digits, '.', '_' and "
                "'-', beginning with a letter and ending with a letter or digit"
            )
    if not spec.devices:
        raise SpecError(f"validate CDI spec {spec.kind}: it defines no device")
    _validate_edits(spec.edits, spec.kind)
    seen: set[str] = set()
    for device in spec.devices:
        where = qualified_name(spec.vendor, spec.class_, device.name)
        if not _DEVICE_NAME.fullmatch(device.name):
            raise SpecError(f"validate CDI device {where}: not a name that a runtime accepts")
        if device.name in seen:
            raise SpecError(f"validate CDI device {where}: defined twice")
        if not device.edits:
            raise SpecError(f"validate CDI device {where}: without edits")
        seen.add(device.name)
        _validate_edits(device.edits, where)


def _validate_edits(edits: ContainerEdits, where: str) -> None:
    for key, value in edits.env.items():
        if not key or "=" in key or "\0" in key + value:
            raise SpecError(f"validate CDI edits of {where}: bad environment variable {key!r}")
    for node in edits.device_nodes:
        if not _PERMISSIONS.fullmatch(node.permissions):
            raise SpecError(f"validate CDI edits of {where}: permissions {node.permissions!r} of {node.path}")
        _require_absolute(where, node.path, node.host_path or node.path)
    for hook in edits.hooks:
        _require_absolute(where, hook.path)
        if any(entry.find("=") <= 0 for entry in hook.env):
            raise SpecError(f"validate CDI edits of {where}: bad environment of hook {hook.path}")
    for mount in edits.mounts:
        _require_absolute(where, mount.host_path, mount.container_path)


def _require_absolute(where: str, *paths: str) -> None:
    for path in paths:
        if not path.startswith("/") or "\0" in path:
            raise SpecError(f"validate CDI edits of {where}: path {path!r} isn't absolute")
