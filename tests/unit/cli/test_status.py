"""`gpuclaim status`: the active agent's word before any other's, and the ledger's file where nobody answers."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.cli import node_status, views
from kubeletplugin.app.ends.control import ControlServer
from kubeletplugin.errors import RecoverableError
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice, Holder, HoldState, Route, Snapshot
from kubeletplugin.ledger.model import Hold as LedgerHold
from kubeletplugin.ledger.store import Ledger
from kubeletplugin.prepare.status import render
from tests.unit.cli.answer import Answer
from tests.unit.cli.conftest import Command

pytestmark = pytest.mark.anyio

GPU = HeldDevice("gpu-0", "GPU-0", "GPU-0", True)
RECORD = ClaimRecord("c1", "team", "train", "f", "[]", ("c1-gpu-0",), (), "boot", 3, "2026-01-02T03:04:05+00:00")
ACTIVE = {"state": "active", "ready": True, "devices": [], "withheld": [], "waiting": []}
STANDBY = {"state": "standby", "ready": "not the active instance: standby"}
HELD = [{"name": "gpu-0", "uuid": "GPU-0", "state": "held"}]


class Held:
    def held(self) -> nullcontext[None]:
        return nullcontext()


class Node:
    """A kubelet root with a short path, and instances that answer as they are told."""

    def __init__(self, root: Path, gpuclaim: Command) -> None:
        self.root, self.folder = root, root / "plugins" / "gpu.nvidia.com"
        self.folder.mkdir(parents=True)
        self._gpuclaim = gpuclaim

    async def status(self, *words: str) -> Answer:
        return await asyncio.to_thread(self._gpuclaim, "status", f"--kubelet-root-dir={self.root}", *words)

    @contextlib.asynccontextmanager
    async def instance(
        self, name: str, answer: dict[str, Any] | Callable[[], Awaitable[dict[str, Any]]]
    ) -> AsyncIterator[None]:
        async def told() -> dict[str, Any]:
            return answer if isinstance(answer, dict) else await answer()

        async def no_metrics(accept: str) -> tuple[bytes, str]:
            return b"", ""

        server = ControlServer(self.folder / f"status-{name}.sock", told, lambda: "", no_metrics)
        await server.start()
        try:
            yield
        finally:
            await server.stop()

    def dead_socket(self, name: str) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.folder / f"status-{name}.sock"))

    async def keep(self) -> None:
        """A ledger in which a claim holds the GPU; the agent has ended."""
        ledger = await Ledger.open(self.folder / "ledger.db", fence=Held(), boot_id="boot", epoch=3)
        await ledger.commit_claim(RECORD, [GPU])
        await ledger.close()


@pytest.fixture
def node(gpuclaim: Command) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/tmp") as name:
        yield Node(Path(name), gpuclaim)


def held(answer: Any) -> list[dict[str, str]]:
    return [{key: device[key] for key in ("name", "uuid", "state")} for device in answer["devices"]]


# --- agents that answer ---
@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
async def test_the_active_instance_is_preferred(node: Node, names: tuple[str, str]) -> None:
    node.dead_socket("0")
    async with node.instance(names[0], STANDBY), node.instance(names[1], ACTIVE):
        assert (await node.status("-o", "json")).json() == ACTIVE
        assert (await node.status("-o", "yaml")).yaml() == [ACTIVE]


async def test_an_instance_that_is_not_active_answers_and_the_file_adds_what_is_held(node: Node) -> None:
    async with node.instance("a", STANDBY):
        assert (await node.status("-o", "json")).json() == STANDBY
        await node.keep()
        answer = (await node.status("-o", "json")).json()
    assert (answer["state"], answer["ready"]) == (STANDBY["state"], STANDBY["ready"])
    assert held(answer) == HELD


@pytest.mark.parametrize("kept", [True, False])
async def test_an_agent_that_hangs_is_said_to(node: Node, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_status, "SECONDS", 0.05)
    monkeypatch.setattr("kubeletplugin.app.ends.http.STOP_SECONDS", 0.01)
    if kept:
        await node.keep()

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with node.instance("a", never):
        answer = (await node.status("-o", "json")).json()
    path = node.folder / "status-a.sock"
    suffix = "; from the ledger's file" if kept else ""
    assert answer["state"] == f"the agent at {path} hasn't answered within 0.05 s{suffix}"
    assert ("devices" in answer) == kept


async def test_an_agent_that_fails_to_answer_is_said_to(node: Node) -> None:
    async def fail() -> dict[str, Any]:
        raise RuntimeError("a bug")

    async with node.instance("a", fail):
        answer = (await node.status("-o", "json")).json()
    assert answer["state"].startswith(f"the agent at {node.folder / 'status-a.sock'} gave no answer (")
    assert "500" in answer["state"]


async def test_why_an_agent_cant_tell_now_is_said(node: Node) -> None:
    async def fail() -> dict[str, Any]:
        raise RecoverableError("read the ledger: disk I/O error")

    async with node.instance("a", fail):
        answer = (await node.status("-o", "json")).json()
    path = node.folder / "status-a.sock"
    assert answer["state"].startswith(f"the agent at {path} can't tell now: read the ledger: disk I/O error")


# --- nobody answers ---
async def test_the_file_speaks_when_no_agent_runs(node: Node) -> None:
    await node.keep()
    node.dead_socket("a")
    answer = (await node.status("-o", "json")).json()
    assert answer["state"] == "no agent runs; from the ledger's file"
    assert held(answer) == HELD
    (holder,) = answer["devices"][0]["holders"]
    assert (holder["namespace"], holder["name"], holder["uid"]) == ("team", "train", "c1")
    table = (await node.status()).out
    assert table.splitlines()[0] == "agent: no agent runs; from the ledger's file"
    assert table.splitlines()[2].split()[:3] == ["gpu-0", "held", "team/train"]


async def test_nothing_there_is_one_line(node: Node) -> None:
    wanted = f"no agent runs here and there is no ledger: looked in {node.folder} (see --kubelet-root-dir)"
    assert (await node.status()).refusal() == wanted
    node.dead_socket("a")
    assert (await node.status()).refusal() == wanted
    for path in node.folder.iterdir():
        path.unlink()
    node.folder.rmdir()
    assert (await node.status()).refusal() == wanted
    node.folder.write_text("no folder")
    assert (await node.status()).refusal() == wanted


async def test_a_ledger_that_cannot_be_read_is_one_line(node: Node) -> None:
    ledger = node.folder / "ledger.db"
    ledger.write_bytes(b"no database" * 1000)
    assert (await node.status()).refusal() == f"read the ledger {ledger}: file is not a database"
    ledger.unlink()
    await node.keep()
    with contextlib.closing(sqlite3.connect(ledger)) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key = 'min_reader'")
        connection.commit()
    assert str(ledger) in (await node.status()).refusal()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("locked", ["socket", "folder"])
async def test_who_may_not_ask_is_told_to_be_root(node: Node, locked: str) -> None:
    node.root.chmod(0o755)
    node.folder.chmod(0o700 if locked == "folder" else 0o755)
    code = """
import asyncio, os, sys
from pathlib import Path
from gpuclaim.cli.node_status import read_status
from kubeletplugin.errors import FatalError
os.setuid(65534)
try:
    asyncio.run(read_status(Path(sys.argv[1])))
except FatalError as error:
    print(error)
"""
    async with node.instance("a", ACTIVE):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(node.folder), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        output, _ = await process.communicate()
    path = node.folder / "status-a.sock"
    begin = f"ask the agent at {path}" if locked == "socket" else f"look for the agent in {node.folder}"
    assert output.decode() == f"{begin}: Permission denied; run this as root\n"


async def test_a_relative_root_is_refused(gpuclaim: Command) -> None:
    assert gpuclaim("status", "--kubelet-root-dir=kubelet").refusal(2).startswith("--kubelet-root-dir: must be")


# --- the table ---
def test_table_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    admin = HeldDevice("gpu-1", "GPU-1", "GPU-1", True, admin=True)
    since = "2026-01-02T03:04:05+00:00"
    holds = (
        LedgerHold(1, GPU, Holder(Route.CLAIM, "c1", "team", "train"), HoldState.HELD, since),
        LedgerHold(2, admin, Holder(Route.CLAIM, "c2", "ops", "look"), HoldState.HELD, since),
        LedgerHold(
            3,
            HeldDevice("gpu-2", "GPU-2", "GPU-2", True),
            Holder(Route.CLAIM, "c3", "team", "old"),
            HoldState.DRAINING,
            since,
            "processes [7] are left",
            frozenset({"pod-b", "pod-a"}),
        ),
    )
    bindings = {f"gpu-{index}": f"GPU-{index}" for index in range(4)}
    status = render(Snapshot("boot", (RECORD,), holds, bindings=bindings))
    status["waiting"] = [{"claim": {"uid": "c4", "namespace": "team", "name": "next"}, "for": "gpu-2 drains"}]
    status["withheld"] = [{"index": 5, "uuid": "GPU-5", "pciBusId": "", "reason": "it is lost"}]
    views.print_status({"state": "active", "ready": "the API server doesn't hold the slices yet", **status})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "agent: active (not ready: the API server doesn't hold the slices yet)".split()
    assert lines[1] == ["DEVICE", "STATE", "HOLDER", "SINCE", "PODS", "REASON"]
    assert lines[2:6] == [
        ["gpu-0", "held", "team/train", since],
        ["gpu-1", "free", "ops/look", "(admin)", since],
        ["gpu-2", "draining", "team/old", since, "pod-a,", "pod-b", "processes", "[7]", "are", "left"],
        ["gpu-3", "free"],
    ]
    assert lines[6] == "waiting: claim team/next: gpu-2 drains".split()
    assert lines[7] == "withheld: GPU 5 GPU-5: it is lost".split()


async def test_a_driver_in_trouble_and_a_holder_that_nobody_knows_are_told(node: Node) -> None:
    drain = {"namespace": "", "name": "", "admin": False, "since": "then", "pods": ["pod-a"], "reason": "pid 7 is left"}
    device = {"name": "gpu-0", "state": "draining", "problem": "", "holders": [drain]}
    async with node.instance("a", {**ACTIVE, "problem": "look: UNKNOWN", "devices": [device]}):
        lines = (await node.status()).out.splitlines()
    assert lines[:2] == ["agent: active", "driver: look: UNKNOWN"]
    (row,) = [line.split() for line in lines if line.startswith("gpu-0")]
    assert row[:5] == ["gpu-0", "draining", "unknown", "then", "pod-a"]
