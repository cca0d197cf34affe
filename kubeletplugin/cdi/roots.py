"""A folder that stands for the host's ``/`` to the driver, seen by the agent at one path and by the runtime at another.

The agent runs in a container and sees the host's driver under, say, ``/driver-root``; the runtime that reads our CDI
files sees the same files under the host's own path. Links are followed inside the root: an absolute link target means
the root's ``/``, never the agent's.
"""

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path

_MAX_LINKS = 40
"""The kernel's own limit."""


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """``seen_at``: where the agent sees it; ``on_host``: the same folder's path on the host (``/`` for a driver
    installed on the host itself, ``/run/nvidia/driver`` for one in a container)."""

    seen_at: Path
    on_host: str = "/"

    def seen(self, path: str) -> Path:
        """Where the agent finds ``path``, a path as the root's own programs write it."""
        return self.seen_at / path.lstrip("/")

    def host_path(self, path: str) -> str:
        """What the host calls ``path``."""
        return posixpath.join(self.on_host, path.lstrip("/"))

    def from_host(self, host_path: str) -> str | None:
        """The root's own name for a path of the host; None when it lies outside."""
        relative = posixpath.relpath(host_path, self.on_host)
        return None if relative == ".." or relative.startswith("../") else f"/{relative}"

    def resolve(self, path: str) -> str | None:
        """``path`` without links, still as seen from inside the root; None when nothing is there."""
        pending = [part for part in reversed(path.split("/")) if part]
        resolved: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part == ".":
                continue
            if part == "..":
                if resolved:
                    resolved.pop()
                continue
            here = "/".join([*resolved, part])
            try:
                target = os.readlink(self.seen_at / here)
            except FileNotFoundError:
                return None
            except OSError:
                resolved.append(part)
                continue
            links += 1
            if links > _MAX_LINKS:
                return None
            if target.startswith("/"):
                resolved = []
            pending += [piece for piece in reversed(target.split("/")) if piece]
        result = "/" + "/".join(resolved)
        return result if os.path.lexists(self.seen(result)) else None
