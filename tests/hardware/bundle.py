"""An OCI bundle with a claim's CDI edits applied, as containerd would apply them.

The image is this machine's own root, through an overlay from which everything that the edits mount is removed: so
what is there of the driver, the edits brought.
"""

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = dict[str, Any]
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT"]


@dataclass(slots=True)
class Edits:
    """What several CDI devices add up to, each spec's own edits once."""

    env: list[str] = field(default_factory=list)
    mounts: list[Json] = field(default_factory=list)
    devices: list[Json] = field(default_factory=list)
    hooks: list[Json] = field(default_factory=list)

    def add(self, edits: Json) -> None:
        self.env += edits.get("env") or []
        self.mounts += edits.get("mounts") or []
        self.devices += edits.get("deviceNodes") or []
        self.hooks += edits.get("hooks") or []


def resolve(folder: Path, ids: Sequence[str]) -> Edits:
    """LookupError for an id that no file of the folder defines."""
    specs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    edits, seen = Edits(), set()
    for wanted in ids:
        kind, _, name = wanted.partition("=")
        for number, spec in enumerate(specs):
            for device in spec["devices"]:
                if spec["kind"] == kind and device["name"] == name:
                    edits.add(device["containerEdits"])
                    if number not in seen:
                        edits.add(spec.get("containerEdits") or {})
                    seen.add(number)
                    break
            else:
                continue
            break
        else:
            raise LookupError(f"resolve {wanted}: no file in {folder} defines it")
    return edits


def configuration(edits: Edits, root: Path, command: Sequence[str], cgroup: str) -> Json:
    """The bundle's config.json."""
    nodes = [_node(device) for device in edits.devices]
    rules = [
        {"allow": True, "type": n["type"], "major": n["major"], "minor": n["minor"], "access": "rw"} for n in nodes
    ]
    environment = [f"PATH={os.environ.get('PATH', '/usr/bin:/bin')}", *edits.env]
    capabilities = dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES)
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root)},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "cwd": "/",
            "env": environment,
            "capabilities": capabilities,
        },
        "mounts": [*_usual_mounts(), *_interpreter(root), *(_mount(mount) for mount in edits.mounts)],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "devices": nodes,
            "resources": {"devices": [{"allow": False, "access": "rwm"}, *_usual_rules(), *rules]},
            "cgroupsPath": cgroup,
        },
        "hooks": _hooks(edits.hooks),
    }


def hide(root: Path, edits: Edits) -> int:
    """Removes from the image what the edits will mount; how many files it were."""
    hidden = 0
    for mount in edits.mounts:
        path = root / mount["containerPath"].lstrip("/")
        if path.is_file() or path.is_symlink():
            path.unlink()
            hidden += 1
    return hidden


def missing_paths(spec: Json, host_root: Path) -> list[str]:
    """Every path on the host, seen at ``host_root``, that the spec's edits name and that isn't there."""
    edits = Edits()
    for part in (spec, *spec["devices"]):
        edits.add(part.get("containerEdits") or {})
    wanted = [mount["hostPath"] for mount in edits.mounts]
    wanted += [device.get("hostPath") or device["path"] for device in edits.devices]
    wanted += [hook["path"] for hook in edits.hooks]
    return [path for path in wanted if not (host_root / path.lstrip("/")).exists()]


def _node(device: Json) -> Json:
    seen = os.stat(device.get("hostPath") or device["path"])
    if not stat.S_ISCHR(seen.st_mode):
        raise LookupError(f"use {device['path']}: it isn't a character device")
    numbers = {"major": os.major(seen.st_rdev), "minor": os.minor(seen.st_rdev)}
    return {"path": device["path"], "type": "c", **numbers, "fileMode": 0o666, "uid": 0, "gid": 0}


def _mount(mount: Json) -> Json:
    options = mount.get("options") or ["ro", "nosuid", "nodev", "bind"]
    return {
        "source": mount["hostPath"],
        "destination": mount["containerPath"],
        "type": mount.get("type") or "bind",
        "options": options if {"bind", "rbind"} & set(options) else [*options, "bind"],
    }


def _hooks(hooks: Sequence[Json]) -> Json:
    kinds: Json = {}
    for hook in hooks:
        taken = {key: hook[key] for key in ("path", "args", "env", "timeout") if hook.get(key)}
        kinds.setdefault(hook["hookName"], []).append(taken)
    return {kind: kinds[kind] for kind in HOOKS if kind in kinds}


def _usual_mounts() -> Iterator[Mapping[str, Any]]:
    yield {"destination": "/proc", "type": "proc", "source": "proc"}
    yield {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}
    yield {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777"]}
    yield {"destination": "/sys", "type": "bind", "source": "/sys", "options": ["rbind", "ro"]}


def _usual_rules() -> Iterator[Json]:
    """null, zero, full, random, urandom."""
    for minor in (3, 5, 7, 8, 9):
        yield {"allow": True, "type": "c", "major": 1, "minor": minor, "access": "rwm"}


def _interpreter(root: Path) -> Iterator[Mapping[str, Any]]:
    """Python and this folder, where they are on a file system that the overlay doesn't show."""
    for path in dict.fromkeys((sys.base_prefix, sys.prefix, str(Path(__file__).parent))):
        seen = root / path.lstrip("/")
        if not seen.exists() or not any(seen.iterdir()):
            yield {"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}
