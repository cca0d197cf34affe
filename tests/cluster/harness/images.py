"""OCI image archives made from local files: there is no registry and no image builder here.

An archive has one layer and imports with `ctr -n k8s.io images import`. Tags other than `latest`, so that the kubelet
never tries to pull.
"""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSE = "localhost/pause:3.10"
BUSYBOX = "localhost/busybox:1"
FOLDERS = ("tmp", "proc", "sys", "dev", "etc", "run", "var", "root", "bin")
CREATED = "2026-01-01T00:00:00Z"


class _Layer:
    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def folder(self, name: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        self._tar.addfile(entry)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), mode
        self._tar.addfile(entry, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def bytes(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _archive(tag: str, layer: bytes, config: Mapping[str, object], output: Path) -> None:
    blob = gzip.compress(layer, 1, mtime=0)
    image = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": CREATED,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", image),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar+gzip", blob)],
        }
    ).encode()
    named = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named["annotations"] = {"io.containerd.image.name": tag}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [named]}
    with tarfile.open(output, "w") as archive:
        entries = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
        entries |= {f"blobs/sha256/{_digest(data)[7:]}": data for data in (image, blob, manifest)}
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}


def make_pause(binary: Path, output: Path) -> None:
    layer = _Layer()
    layer.file("pause", binary.read_bytes(), 0o755)
    _archive(PAUSE, layer.bytes(), {"Entrypoint": ["/pause"]}, output)


def make_busybox(output: Path, command: Sequence[str] = ("sh",)) -> None:
    busybox = Path("/bin/busybox")
    layer = _Layer()
    for folder in FOLDERS:
        layer.folder(folder)
    layer.file("bin/busybox", busybox.read_bytes(), 0o755)
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if applet != "busybox":
            layer.link(f"bin/{applet}", "busybox")
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    layer.file("etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    config = {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": list(command)}
    _archive(BUSYBOX, layer.bytes(), config, output)
