"""The CDI files that the agent wrote, read as a container runtime would."""

import json
import re
from pathlib import Path

from deviceclasses.names import CDI_CLAIM_CLASS, CDI_DRIVER_CLASS, CDI_VENDOR
from kubeapi.client import Json

_GPU_NODE = re.compile(r"/dev/nvidia\d+")


class CdiFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, uid: str) -> tuple[Path, Json]:
        path = self._folder / f"{CDI_VENDOR}-{CDI_CLAIM_CLASS}_{uid}.json"
        return path, _read(path)

    def driver(self) -> tuple[Path, Json]:
        path = self._folder / f"{CDI_VENDOR}-{CDI_DRIVER_CLASS}.json"
        return path, _read(path)

    def claim_files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{CDI_VENDOR}-{CDI_CLAIM_CLASS}_*"))

    def ids(self) -> set[str]:
        """All that can be resolved."""
        specs = [_read(path) for path in self._folder.glob("*.json")]
        return {f"{spec['kind']}={device['name']}" for spec in specs for device in spec["devices"]}

    def gpu_nodes(self, uid: str) -> set[str]:
        """GPUs' own device nodes in a container that has this claim, the driver's part included."""
        paths = {node["path"] for spec in (self.claim(uid)[1], self.driver()[1]) for node in device_nodes(spec)}
        return {path for path in paths if _GPU_NODE.fullmatch(path)}


def device_nodes(spec: Json) -> list[Json]:
    edits = [spec.get("containerEdits", {}), *(device["containerEdits"] for device in spec["devices"])]
    return [node for edit in edits for node in edit.get("deviceNodes", ())]


def compact(spec: Json) -> str:
    """JSON with one line for each leaf object, so that a device node is a line."""
    text = json.dumps(spec, indent=2)
    return re.sub(r"\{[^{}]*\}", lambda match: " ".join(match[0].split()), text)


def _read(path: Path) -> Json:
    content: Json = json.loads(path.read_text())
    return content
