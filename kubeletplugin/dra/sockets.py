"""Where the sockets of one instance are, and how they are named.

Every instance has names of its own, made from its pod's UID: C-core unlinks a socket's path when it binds and when it
stops, so two instances with one name would remove each other's. A path may have 107 bytes (an AF_UNIX address of 108
with its NUL); Python's gRPC takes that much behind ``unix:`` and two less behind ``unix://``. Where a kubelet root is
long the UID gives way to a hash of driver and UID, then the driver's name to three letters.
"""

import base64
import hashlib
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.errors import FatalError

MAX_SOCKET_PATH = 107
REGISTRATION_SUFFIX = "-reg.sock"
DRA_PREFIX = "dra-"
DRA_SUFFIX = ".sock"
STATUS_PREFIX = "status-"
STATUS_SUFFIX = ".sock"
"""Where an instance answers `gpuclaim status`, beside its DRA socket."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """``registration`` is where the kubelet looks, ``hidden`` where the same socket is bound before it can answer
    (the kubelet ignores names with a leading dot). ``dra`` is what registration tells the kubelet to call."""

    registration: Path
    hidden: Path
    dra: Path

    @property
    def dra_target(self) -> str:
        return target(self.dra)


def target(path: Path) -> str:
    """The gRPC address of a socket."""
    return f"unix:{path}"


def registry_dir(kubelet_root: Path) -> Path:
    return kubelet_root / "plugins_registry"


def plugin_dir(kubelet_root: Path, driver: str) -> Path:
    return kubelet_root / "plugins" / driver


def choose_paths(registry: Path, plugin: Path, driver: str, uid: str) -> SocketPaths:
    """The longest names that fit, for each of the two sockets; FatalError if even the shortest don't."""
    short = short_token(driver, uid)
    registration = first_that_fits(
        registry / f"{driver}-{uid}{REGISTRATION_SUFFIX}",
        registry / f"{driver}-{short}{REGISTRATION_SUFFIX}",
        registry / f"{DRA_PREFIX}{short}{REGISTRATION_SUFFIX}",
    )
    dra = first_that_fits(plugin / f"{DRA_PREFIX}{uid}{DRA_SUFFIX}", plugin / f"{DRA_PREFIX}{short}{DRA_SUFFIX}")
    return SocketPaths(registration, registry / f".{registration.name[1:]}", dra)


def short_token(driver: str, uid: str) -> str:
    digest = hashlib.sha256(f"{driver}\0{uid}".encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).rstrip(b"=").decode()


def first_that_fits(*paths: Path) -> Path:
    for path in paths:
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
            return path
    shortest = paths[-1]
    raise FatalError(
        f"name a socket in {shortest.parent}: {shortest} has {len(os.fsencode(shortest))} bytes, at most"
        f" {MAX_SOCKET_PATH} are possible; use a shorter --kubelet-root-dir (a bind mount or the kubelet's --root-dir)"
    )


def is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:
        return False


def stamp(path: Path) -> None:
    """Has the socket's modification time say how long after boot it was bound: the wall clock may be set back, and what
    was bound later would then look older."""
    bound = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.utime(path, ns=(bound, bound))


def bound_at(path: Path) -> int | None:
    """As stamped; what becomes of the socket's name or rights later doesn't count."""
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def answers(path: Path) -> bool:
    """Whether a process listens on the socket. A full backlog or a lack of rights counts as a listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def peer_dra_sockets(plugin: Path, own: SocketPaths) -> list[Path]:
    """DRA sockets of the driver's other instances, alive or dead: the plugin folder is this driver's alone."""
    found = (path for path in plugin.glob(f"{DRA_PREFIX}*{DRA_SUFFIX}") if path != own.dra)
    return sorted(path for path in found if is_socket(path))


def status_sockets(plugin: Path) -> list[Path]:
    """Status sockets of all instances of the driver, alive or dead."""
    return sorted(path for path in plugin.glob(f"{STATUS_PREFIX}*{STATUS_SUFFIX}") if is_socket(path))


def peer_registration_sockets(registry: Path, driver: str, own: SocketPaths, dra_sockets: list[Path]) -> list[Path]:
    """Registration sockets of the driver's other instances. The shortest form doesn't name its driver, so it counts
    only beside a DRA socket with the same token."""
    named = registry.glob(f"{driver}-*{REGISTRATION_SUFFIX}")
    tokens = (path.name.removeprefix(DRA_PREFIX).removesuffix(DRA_SUFFIX) for path in dra_sockets)
    short = (registry / f"{DRA_PREFIX}{token}{REGISTRATION_SUFFIX}" for token in tokens)
    return sorted(path for path in (*named, *short) if path != own.registration and is_socket(path))


def registration_of(registry: Path, driver: str, dra: Path) -> Path | None:
    """The registration socket of the instance with this DRA socket, if there is one (see ``choose_paths``)."""
    token = dra.name.removeprefix(DRA_PREFIX).removesuffix(DRA_SUFFIX)
    short = short_token(driver, token)
    names = (f"{driver}-{token}", f"{driver}-{short}", f"{DRA_PREFIX}{short}", f"{DRA_PREFIX}{token}")
    paths = (registry / f"{name}{REGISTRATION_SUFFIX}" for name in names)
    return next((path for path in paths if is_socket(path)), None)
