"""Instances as processes of their own, each by its name, and who of them serves."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpuclaim.demo.kubelet import PodClaim
from kubeletplugin.dra.sockets import plugin_dir
from kubeletplugin.lease.record import LeaseRecord, parse_record
from tests.contract.dra.support import DRIVER, Node, until

REPOSITORY = Path(__file__).parents[3]


class Process:
    def __init__(self, node: Node, name: str, process: asyncio.subprocess.Process) -> None:
        self._node = node
        self.name = name
        self.process = process

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stopped(self) -> bool:
        return self.state_of(self.process.pid) == "T"

    @staticmethod
    def state_of(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    def connected(self) -> bool:
        plugins = self._node.kubelet.plugins.plugins(DRIVER)
        return any(self.name in plugin.endpoint and plugin.connected for plugin in plugins)


@asynccontextmanager
async def instance(node: Node, name: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.contract.dra.process", str(node.root), name, cwd=REPOSITORY
    )
    wrapped = Process(node, name, process)
    try:
        await until(lambda: wrapped.connected() and recorded(node).instance == name)
        yield wrapped
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def recorded(node: Node) -> LeaseRecord:
    path = plugin_dir(node.root, DRIVER) / "lease"
    return parse_record(path.read_bytes()[:2048]) if path.exists() else LeaseRecord()


def special(name: str) -> PodClaim:
    return PodClaim(f"uid-{name}", "default", name, (DRIVER,))


async def server_of(node: Node, pod: str, wanted: PodClaim) -> str:
    """The name of the instance that prepared the claim."""
    await node.kubelet.prepare(pod, [wanted])
    (device,) = node.kubelet.claims.claims[wanted.namespace, wanted.name].drivers[DRIVER]
    return str(device.pool_name)
