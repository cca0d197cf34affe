"""Finds NVIDIA's hook program on the host and writes its hooks.

``nvidia-cdi-hook`` (or ``nvidia-ctk hook``) is run by the runtime, on the host, while it makes a container. Its
subcommands came over time, and one that it doesn't know fails the container's start: so only those are used that are
seen to be in the program. They are looked for as text in the file, since running a program of the host from the
agent's container may not work at all.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.spec import Hook

CREATE_SYMLINKS: Final = "create-symlinks"
ENABLE_CUDA_COMPAT: Final = "enable-cuda-compat"
UPDATE_LDCACHE: Final = "update-ldcache"
DISABLE_DEVICE_NODE_MODIFICATION: Final = "disable-device-node-modification"

ALL_SUBCOMMANDS = frozenset({CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE, DISABLE_DEVICE_NODE_MODIFICATION})
FIRST_SUBCOMMANDS = frozenset({CREATE_SYMLINKS, UPDATE_LDCACHE})
"""What the program has had since its first release."""

_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)
_FOLDERS = (
    "/usr/bin",
    "/usr/local/nvidia/toolkit",  # NVIDIA's GPU operator
    "/usr/local/bin",
    "/opt/nvidia/toolkit",
    "/run/current-system/sw/bin",  # NixOS
    "/var/lib/kubelet/plugins/gpu.nvidia.com",  # left by NVIDIA's DRA driver
)
_PROGRAMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nvidia-cdi-hook", ("nvidia-cdi-hook",)),
    ("nvidia-ctk", ("nvidia-ctk", "hook")),
)


@dataclass(frozen=True, slots=True)
class HookTool:
    """``path`` on the host; ``command`` are the arguments before the subcommand, the program's name first."""

    path: str
    command: tuple[str, ...]
    subcommands: frozenset[str]

    def hook(self, subcommand: str, *args: str) -> Hook:
        return Hook(name="createContainer", path=self.path, args=(*self.command, subcommand, *args), env=_ENVIRONMENT)

    def create_symlinks(self, links: dict[str, str]) -> Hook:
        """``links``: path in the container to the link's text."""
        args = [arg for path, target in links.items() for arg in ("--link", f"{target}::{path}")]
        return self.hook(CREATE_SYMLINKS, *args)


def find_hook_tool(roots: tuple[DriverRoot, ...], explicit: str = "") -> HookTool | None:
    """The first one found under ``roots``. ``explicit``, a path on the host, is taken as given: where the agent can't
    look at it, it counts as a current release."""
    if explicit:
        command = next((c for name, c in _PROGRAMS if name == Path(explicit).name), _PROGRAMS[0][1])
        inside = ((root, path) for root in roots if (path := root.from_host(explicit)) is not None)
        found = next((known for root, path in inside if (known := _subcommands(root, path)) is not None), None)
        return HookTool(explicit, command, found if found is not None else ALL_SUBCOMMANDS)
    for name, command in _PROGRAMS:
        for root in roots:
            for folder in _FOLDERS:
                subcommands = _subcommands(root, f"{folder}/{name}")
                if subcommands is not None:
                    return HookTool(root.host_path(f"{folder}/{name}"), command, subcommands)
    return None


def _subcommands(root: DriverRoot, path: str) -> frozenset[str] | None:
    """What the program at ``path`` has; None when there is none.

    The operator installs a script that starts the program beside it, of the same name and ``.real``.
    """
    program = _file(root, path)
    if program is None:
        return None
    try:
        return FIRST_SUBCOMMANDS | _named_in(_file(root, f"{path}.real") or program)
    except OSError:
        return FIRST_SUBCOMMANDS


def _file(root: DriverRoot, path: str) -> Path | None:
    resolved = root.resolve(path)
    return root.seen(resolved) if resolved is not None and root.seen(resolved).is_file() else None


def _named_in(program: Path) -> frozenset[str]:
    with program.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file
            return frozenset()
        with data:
            return frozenset(name for name in ALL_SUBCOMMANDS if data.find(name.encode()) >= 0)
