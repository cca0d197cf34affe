"""The agent as a process, cut off at its crash points: killed there, or overtaken while it stands still and then woken.

On a fake kubelet and API server, for the points that need processes, sockets and files; prepare/test_crash_points.py
has those of the claim route's core. The same on a real node: tests/cluster/test_crash_points.py.
"""

import asyncio
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuclaim.demo.kubelet import FakeKubelet, PodClaim, PodError
from gpuclaim.demo.kubelet_plugins import KubeletTiming
from kubeapi.client import RESOURCE_SLICES
from kubeletplugin.cdi.driver import DRIVER_FILE
from tests.cluster.crashing_agent import ARMED, DEVICES_PER_SLICE, REACHED
from tests.contract.agent.node import AgentNode, AgentProcess, until, until_true

pytestmark = pytest.mark.anyio

START = (
    "start.accepted",
    "start.served",
    "register.bound",
    "register.published",
    "register.confirmed",
    "takeover.acquired",
    "takeover.opened",
    "takeover.cleaned",
    "takeover.recovered",
    "takeover.activated",
)
KILLED_IN_PREPARE = ("ledger.uncommitted", "cdi.temporary", "cdi.renamed")
OVERTAKEN_IN_PREPARE = ("prepare.committed", "cdi.temporary", "cdi.fenced")
CALL_SECONDS = 4.0
"""The kubelet's deadline here. Only after it, or its own restart, does it send another call for the same claim."""


@dataclass(slots=True)
class Crashing:
    """Agents that stand still where they are told, each a pod of its own that may be started again."""

    node: AgentNode
    uids: dict[str, str] = field(default_factory=dict)

    async def start(self, name: str, *, at: str = "") -> AgentProcess:
        folder = self.folder(name)
        folder.mkdir(exist_ok=True)
        (folder / REACHED).unlink(missing_ok=True)
        if at:
            self.arm(name, at)
        uid = self.uids.setdefault(name, str(uuid.uuid4()))
        command = ("-m", "tests.cluster.crashing_agent", str(folder))
        return await self.node.start_process(name, f"--pod-uid={uid}", command=command)

    async def serving(self, name: str) -> AgentProcess:
        process = await self.start(name)
        await serves(process)
        return process

    def folder(self, name: str) -> Path:
        return self.node.folder / f"crash-{name}"

    def arm(self, name: str, point: str) -> None:
        (self.folder(name) / ARMED).write_text(point)

    async def stands_still(self, name: str) -> None:
        await until_true((self.folder(name) / REACHED).exists)

    async def everything_is_gone(self) -> None:
        """Nothing is held, and there are no files but the driver's, the ledger's and one instance's."""
        assert {entry["state"] for entry in (await self.node.status())["devices"]} == {"free"}
        assert [path.name for path in self.node.settings.cdi_dir.iterdir()] == [DRIVER_FILE]
        await until_true(lambda: len(self.node.sockets()) == len(("registration", "DRA", "status")))
        await self.node.ready()
        sizes = [len(item["spec"]["devices"]) for item in self.node.slices()]
        assert sorted(sizes) == [8 - DEVICES_PER_SLICE, DEVICES_PER_SLICE]
        assert len({item["spec"]["pool"]["generation"] for item in self.node.slices()}) == 1


@pytest.fixture
async def crashing(node: AgentNode) -> Crashing:
    await node.kubelet.stop()
    timing = KubeletTiming(look=0.01, call=CALL_SECONDS)
    node.kubelet = FakeKubelet(node.folder / "kubelet", timing=timing, wipe=node.wipe, append=False)
    await node.kubelet.start()
    return Crashing(node)


@pytest.fixture
async def patient(node: AgentNode) -> Crashing:
    """With a kubelet whose own deadline is never over here: it restarts, and so gives its calls up."""
    return Crashing(node)


def state_of(process: AgentProcess) -> str:
    """As it was told last. A status socket isn't asked: an instance that stands still wouldn't answer."""
    return process.output.rpartition("registered: ")[2]


async def serves(process: AgentProcess) -> None:
    await until_true(lambda: state_of(process).startswith("True, active"))


async def insist(work: Callable[[], Awaitable[object]]) -> object:
    """As the kubelet does, until it succeeds."""

    async def once() -> object:
        try:
            return await work() or True
        except PodError:
            return None

    return await until(once)


async def cut_off(crashing: Crashing, name: str, point: str, work: Callable[[], Awaitable[object]]) -> None:
    """The kubelet's call goes no further than the point, and ends there by its deadline."""
    crashing.arm(name, point)
    call = asyncio.ensure_future(work())
    await crashing.stands_still(name)
    with pytest.raises(PodError):
        await call


async def given_up(crashing: Crashing, name: str, point: str, work: Callable[[], Awaitable[object]]) -> None:
    """The kubelet's call goes no further than the point; the kubelet gives it up long before its deadline."""
    crashing.arm(name, point)
    call = asyncio.ensure_future(work())
    await crashing.stands_still(name)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def claim_with_ids(node: AgentNode) -> tuple[PodClaim, list[str]]:
    claim = node.allocate("train", "gpu-5", pod="pod-1")
    return claim, [node.claim_id(claim, "gpu-5"), "k8s.gpu.nvidia.com/driver=all"]


async def test_killed_at_each_point_of_its_start(node: AgentNode, crashing: Crashing) -> None:
    process = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    assert await node.prepare("pod-1", claim) == ids
    files = node.claim_files()
    for point in START:
        assert await process.end(signal.SIGKILL) == -signal.SIGKILL
        process = await crashing.start("a", at=point)
        await crashing.stands_still("a")
        assert node.claim_files() == files, f"the file is as it was at {point}"
    await process.end(signal.SIGKILL)
    await crashing.serving("a")
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    await crashing.everything_is_gone()


@pytest.mark.parametrize("point", KILLED_IN_PREPARE)
async def test_killed_in_a_prepare(node: AgentNode, crashing: Crashing, point: str) -> None:
    first = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    await cut_off(crashing, "a", point, lambda: node.prepare("pod-1", claim))
    await first.end(signal.SIGKILL)
    await crashing.serving("a")
    assert await insist(lambda: node.prepare("pod-1", claim)) == ids
    assert len(node.claim_files()) == 1
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    await crashing.everything_is_gone()


@pytest.mark.parametrize("point", OVERTAKEN_IN_PREPARE)
async def test_overtaken_in_a_prepare_and_woken(node: AgentNode, crashing: Crashing, point: str) -> None:
    """By when the claim is prepared and unprepared again elsewhere: the late one must not bring anything back."""
    first = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    await cut_off(crashing, "a", point, lambda: node.prepare("pod-1", claim))
    second = await crashing.serving("b")
    assert await insist(lambda: node.prepare("pod-1", claim)) == ids
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    if not first.ended:
        first.send(signal.SIGCONT)
        await until_true(lambda: "standby" in state_of(first))
        assert await first.end(signal.SIGTERM) == 0, first.output
    await serves(second)
    await crashing.everything_is_gone()


Leave = Callable[[Crashing, str, str, Callable[[], Awaitable[object]]], Awaitable[None]]
"""How the kubelet's call ends."""


async def woken_in_an_unprepare(node: AgentNode, crashing: Crashing, leave: Leave) -> None:
    """The claim is unprepared and prepared anew elsewhere before instance a wakes in its own Unprepare of it."""
    first = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    await node.prepare("pod-1", claim)
    await leave(crashing, "a", "release.file-removed", lambda: node.kubelet.unprepare("pod-1", [claim]))
    await crashing.serving("b")
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    assert await insist(lambda: node.prepare("pod-1", claim)) == ids
    files = node.claim_files()
    first.send(signal.SIGCONT)
    await until_true(lambda: "standby" in state_of(first))
    assert await first.end(signal.SIGTERM) == 0, first.output
    assert node.claim_files() == files and len(files) == 1
    assert await node.holders("gpu-5") == ["train"]
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    await crashing.everything_is_gone()


async def test_overtaken_in_an_unprepare_and_woken(node: AgentNode, crashing: Crashing) -> None:
    """By when the claim is prepared anew elsewhere: the late one must not undo that."""
    await woken_in_an_unprepare(node, crashing, cut_off)


async def test_woken_in_an_unprepare_that_was_given_up(node: AgentNode, patient: Crashing) -> None:
    """The claim was unprepared and prepared anew elsewhere: to pass the old call on would undo that."""
    await woken_in_an_unprepare(node, patient, given_up)


async def test_woken_in_a_prepare_that_was_given_up(node: AgentNode, patient: Crashing) -> None:
    """The claim was prepared and unprepared elsewhere: to pass the old call on would hold its GPU for nobody."""
    first = await patient.serving("a")
    claim, ids = claim_with_ids(node)
    await given_up(patient, "a", "prepare.committed", lambda: node.prepare("pod-1", claim))
    await patient.serving("b")
    assert await insist(lambda: node.prepare("pod-1", claim)) == ids
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    first.send(signal.SIGCONT)
    await until_true(lambda: "standby" in state_of(first))
    assert await first.end(signal.SIGTERM) == 0, first.output
    assert node.claim_files() == {}
    await patient.everything_is_gone()


async def test_killed_while_it_writes_slices(node: AgentNode, crashing: Crashing) -> None:
    first = await crashing.serving("a")
    crashing.arm("a", "slices.written")
    for item in node.slices():
        node.server.remove(RESOURCE_SLICES, item["metadata"]["name"])
    await crashing.stands_still("a")
    await first.end(signal.SIGKILL)
    await crashing.serving("a")
    await crashing.everything_is_gone()


async def test_killed_at_its_end(node: AgentNode, crashing: Crashing) -> None:
    first = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    await node.prepare("pod-1", claim)
    crashing.arm("a", "stop.yielded")
    first.send(signal.SIGTERM)
    await crashing.stands_still("a")
    await first.end(signal.SIGKILL)
    await crashing.serving("a")
    await node.kubelet.restart()
    assert await insist(lambda: node.prepare("pod-1", claim)) == ids
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    await crashing.everything_is_gone()


async def test_stands_still_while_it_yields_and_is_woken(node: AgentNode, crashing: Crashing) -> None:
    first = await crashing.serving("a")
    claim, ids = claim_with_ids(node)
    assert await node.prepare("pod-1", claim) == ids
    crashing.arm("a", "yield.quiet")
    second = await crashing.start("b")
    await crashing.stands_still("a")
    await serves(second)
    first.send(signal.SIGCONT)
    await insist(lambda: node.kubelet.unprepare("pod-1", [claim]))
    assert await first.end(signal.SIGTERM) == 0, first.output
    await serves(second)
    await crashing.everything_is_gone()
