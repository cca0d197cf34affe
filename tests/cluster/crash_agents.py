"""Agents that a test cuts off at a crash point (see crashing_agent): armed, stopped there, killed or woken."""

import contextlib
import http.client
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.app.ends.control import socket_path
from kubeletplugin.dra.sockets import plugin_dir
from tests.cluster.crashing_agent import ARMED, REACHED
from tests.cluster.harness.agent import Agent
from tests.cluster.harness.node import KUBELET_ROOT, RealNode

PLUGIN = plugin_dir(KUBELET_ROOT, DRIVER_NAME)


class CrashingAgent(Agent):
    """Stops at the point for which it is armed."""

    @property
    def folder(self) -> Path:
        return self.node.layout.run / "crash" / self.name

    def arm(self, point: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.disarm()
        armed = self.folder / f"{ARMED}.new"
        armed.write_text(point)
        armed.rename(self.folder / ARMED)

    def disarm(self) -> None:
        for name in (ARMED, REACHED):
            (self.folder / name).unlink(missing_ok=True)

    def stands_still(self) -> bool:
        pid = self.pid
        return (self.folder / REACHED).exists() and pid is not None and _state(pid) == "T"

    def signal(self, number: int) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    def wake(self) -> None:
        self.signal(signal.SIGCONT)

    def answer(self) -> dict[str, Any]:
        """Its status; empty while it has none to give."""
        connection = _UnixConnection(socket_path(PLUGIN, DRIVER_NAME, self.uid))
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError), contextlib.closing(connection):
            connection.request("GET", "/status")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        return {}

    def _ready(self) -> bool:
        return self.answer().get("ready") is True


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def agent_of(node: RealNode, name: str) -> CrashingAgent:
    folder = node.layout.run / "crash" / name
    return CrashingAgent(node, name=name, entry=("tests.cluster.crashing_agent", str(folder)))
