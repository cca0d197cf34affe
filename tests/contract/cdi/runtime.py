"""The CDI part of a container runtime: resolves ids over a folder and says what the container gets.

Rules as in CDI 1.1.0 and as measured with containerd: every ``.json`` and ``.yaml`` file of the folder counts, a
device in two of them can't be resolved, repeated ids count once, a file's own edits apply once, a later value of a
variable, node or mount takes the earlier one's place.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.unit.cdi.checker import problems


class UnresolvableError(Exception):
    """What the runtime answers instead of starting the container."""


@dataclass
class Container:
    env: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    mounts: dict[str, dict[str, Any]] = field(default_factory=dict)
    hooks: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, edits: dict[str, Any]) -> None:
        for variable in edits.get("env", []):
            key, _, value = variable.partition("=")
            self.env[key] = value
        self.nodes |= {node["path"]: node for node in edits.get("deviceNodes", [])}
        self.mounts |= {mount["containerPath"]: mount for mount in edits.get("mounts", [])}
        self.hooks += edits.get("hooks", [])

    def links(self) -> dict[str, str]:
        """Path of each link to its text, over all create-symlinks hooks."""
        found = {}
        for hook in self.hooks:
            if "create-symlinks" in hook["args"]:
                for text in hook["args"][hook["args"].index("create-symlinks") + 2 :: 2]:
                    target, _, path = text.partition("::")
                    found[path] = target
        return found

    def other_hooks(self) -> list[list[str]]:
        return [hook["args"] for hook in self.hooks if "create-symlinks" not in hook["args"]]


def inject(folder: Path, ids: list[str], *, strict: bool = True) -> Container:
    """``strict`` holds every file to the checker too, which NVIDIA's own files don't pass (they carry a version that
    is larger than needed)."""
    devices: dict[str, list[tuple[Path, dict[str, Any], dict[str, Any]]]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".json", ".yaml"):
            continue
        document = yaml.safe_load(path.read_text())
        assert not strict or problems(document) == [], path
        for device in document["devices"]:
            devices.setdefault(f"{document['kind']}={device['name']}", []).append((path, document, device))
    container, applied = Container(), set()
    for name in dict.fromkeys(ids):
        candidates = devices.get(name, [])
        if len(candidates) != 1:
            raise UnresolvableError(f"unresolvable CDI devices {name}: in {len(candidates)} files")
        path, document, device = candidates[0]
        if path not in applied:
            applied.add(path)
            container.apply(document.get("containerEdits", {}))
        container.apply(device["containerEdits"])
    return container
