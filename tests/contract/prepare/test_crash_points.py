"""The agent is cut off at every crash point of the claim route's core, as each kind of work passes it, and is started
again: after a restart, after a reboot, and with the claim gone meanwhile. Then what should be prepared is or can be,
everything can be claimed again, and nothing is left behind.

The same points on a real node, with those of files, sockets and slices, are in tests/cluster/test_crash_points.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin import crashpoints
from kubeletplugin.prepare.model import ClaimRef
from tests.contract.prepare.node import Agent, Died
from tests.contract.prepare.world import File, World, answered

pytestmark = pytest.mark.anyio

A = ClaimRef("uid-a", "ns", "a")
GPUS = ("gpu-0", "gpu-1")
RELEASE = ("release.begun", "release.file-removed", "release.looked", "ledger.uncommitted", "release.committed")
COMMIT = ("ledger.uncommitted", "prepare.committed", "prepare.written")
SECONDS = 60.0
"""Virtual ones, until a point must have been reached and until everything must be in order again."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``arrange`` has a living agent ready for ``work``, which passes ``points``. With ``at_start`` the agent ends
    after ``arrange`` and the points are those of its next start. ``gpu`` is what claim A should have in the end, if
    it is still there; empty where its pod is gone."""

    arrange: Callable[[World, Agent], Awaitable[object]]
    points: tuple[str, ...]
    work: Callable[[World, Agent], Awaitable[object]] | None = None
    gpu: str = ""
    at_start: bool = False


# --- what is arranged ---
async def allocated(world: World, agent: Agent) -> None:
    world.allocate("a", "gpu-0")
    world.list_in_kubelet(A, "pod-a")


async def running(world: World, agent: Agent) -> None:
    await allocated(world, agent)
    await agent.prepare_one(A)
    world.list_in_kubelet(A, "pod-a", ids=["uid-a-gpu-0"])
    world.processes["pod-a"] = {1}


async def ended(world: World, agent: Agent) -> None:
    await running(world, agent)
    world.deallocate(A)


async def draining(world: World, agent: Agent) -> None:
    await ended(world, agent)
    await agent.unprepare(A)
    world.kubelet.clear()


async def behind_a_draining_one(world: World, agent: Agent) -> None:
    old = world.allocate("old", "gpu-0")
    await agent.prepare_one(old)
    world.processes["pod-old"] = {7}
    world.deallocate(old)
    await agent.unprepare(old)
    await allocated(world, agent)


async def moved(world: World, agent: Agent) -> None:
    await running(world, agent)
    world.allocate("a", "gpu-1", pods=["pod-2"])
    world.list_in_kubelet(A, "pod-a", "pod-2", ids=["uid-a-gpu-0"])


async def forgotten(world: World, agent: Agent) -> None:
    await ended(world, agent)
    world.kubelet.clear()


async def without_its_file(world: World, agent: Agent) -> None:
    await running(world, agent)
    world.files.clear()


async def without_its_ledger(world: World, agent: Agent) -> None:
    await running(world, agent)
    for path in world.path.glob("ledger.db*"):
        path.rename(path.with_name(f"lost-{path.name}"))


async def beside_a_strangers_file(world: World, agent: Agent) -> None:
    await running(world, agent)
    world.files["uid-nobody"] = File({"uid-nobody-gpu-1": "GPU-1"}, world.boot_id)


# --- what is done ---
async def prepare(world: World, agent: Agent) -> None:
    await agent.prepare_one(A)


async def unprepare(world: World, agent: Agent) -> None:
    await agent.unprepare(A)


async def sweep(world: World, agent: Agent) -> None:
    await agent.manager.sweep()


async def mend(world: World, agent: Agent) -> None:
    await agent.manager.mend_files(None)


async def end_processes(world: World, agent: Agent) -> None:
    world.processes.clear()


SCENARIOS = {
    "prepare": Scenario(
        allocated, ("prepare.read", "prepare.free", "prepare.read-again", *COMMIT), prepare, gpu="gpu-0"
    ),
    "wait": Scenario(behind_a_draining_one, ("prepare.waiting",), prepare, gpu="gpu-0"),
    "repeat": Scenario(running, ("prepare.read", "prepare.repeated"), prepare, gpu="gpu-0"),
    "undo": Scenario(moved, (*RELEASE, "prepare.undone", "prepare.free", *COMMIT[1:]), prepare, gpu="gpu-1"),
    "unprepare": Scenario(ended, RELEASE, unprepare),
    "drain": Scenario(draining, ("drain.over", "ledger.uncommitted", "drain.ended"), end_processes),
    "sweep": Scenario(forgotten, ("sweep.judged", *RELEASE), sweep),
    "restore": Scenario(without_its_file, ("mend.begun",), sweep, gpu="gpu-0"),
    "mend": Scenario(without_its_file, ("mend.begun",), mend, gpu="gpu-0"),
    "lost ledger": Scenario(
        without_its_ledger,
        ("adopt.seen", "adopt.committed", "heal.begun", *COMMIT[1:]),
        gpu="gpu-0",
        at_start=True,
    ),
    "stray file": Scenario(beside_a_strangers_file, ("takeover.stray",), gpu="gpu-0", at_start=True),
}


# --- what happens while the agent is away ---
def restart(world: World) -> None:
    """Nothing but that."""


def reboot(world: World) -> None:
    world.boot_id = "boot-2"
    world.files.clear()
    world.processes.clear()
    world.on_device.clear()


def force_delete(world: World) -> None:
    world.deallocate(A)


DEEDS = {deed.__name__: deed for deed in (restart, reboot, force_delete)}
CASES = [(name, point) for name, scenario in SCENARIOS.items() for point in scenario.points]


@contextmanager
def armed(agent: Agent, point: str) -> Iterator[None]:
    def die(reached: str) -> None:
        if agent.dead or reached == point:
            agent.dead = True
            raise Died(reached)

    crashpoints.hook = die
    try:
        yield
    finally:
        crashpoints.hook = None


async def _cut_off(world: World, agent: Agent, scenario: Scenario, point: str) -> None:
    await scenario.arrange(world, agent)
    if scenario.at_start:
        await agent.crash()
        agent = Agent(world)
        agent.background = asyncio.ensure_future(asyncio.sleep(0))
    with armed(agent, point):
        work: Any = agent.start() if scenario.work is None else scenario.work(world, agent)
        agent.begin(work)
        for _ in range(int(SECONDS)):
            await asyncio.sleep(1)
            if agent.dead:
                break
        assert agent.dead, f"{point} wasn't reached"
        await agent.crash()


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize(("name", "point"), CASES)
async def test_it_finds_back(tmp_path: Path, name: str, point: str, deed: str) -> None:
    world, scenario = World(tmp_path), SCENARIOS[name]
    await _cut_off(world, await Agent(world).start(), scenario, point)
    DEEDS[deed](world)
    agent = await Agent(world).start()
    await asyncio.sleep(1)

    if scenario.gpu and deed != "force_delete":
        kubelet_forgot = deed == "reboot" or not world.kubelet[A.uid].cdi_names or name in ("undo", "repeat")
        world.processes.pop("pod-old", None)
        if kubelet_forgot:
            result = await agent.prepare_one(A)
            assert result.devices == (answered(scenario.gpu, A.uid),), result.error
        assert world.gpu_of(A) == {scenario.gpu.upper()}
        assert (await agent.holders())[scenario.gpu] == ["a"]
    world.processes.clear()
    await _end_of_a(world, agent)

    await _everything_can_be_claimed(world, agent)
    await agent.stop()


async def _end_of_a(world: World, agent: Agent) -> None:
    """Its pod's, if there is one: by Unprepare where the kubelet has the claim, else by a check."""
    world.deallocate(A)
    if A.uid in world.kubelet:
        assert await agent.unprepare(A) == ""
        world.kubelet.clear()
    else:
        await agent.manager.sweep()


async def _everything_can_be_claimed(world: World, agent: Agent) -> None:
    b = world.allocate("b", *GPUS)
    result = await agent.prepare_one(b)
    assert result.devices == tuple(answered(gpu, b.uid) for gpu in GPUS), result.error
    assert await agent.holders() == {gpu: ["b"] for gpu in GPUS}
    assert list(world.files) == [b.uid]
    world.deallocate(b)
    assert await agent.unprepare(b) == ""
    assert (await agent.holders(), await agent.draining(), world.files) == ({}, {}, {})
    assert (await agent.ledger.claims(), await agent.ledger.intents()) == ((), ())


def test_every_point_of_the_core_is_cut_at() -> None:
    core = {point for point in crashpoints.POINTS if point.partition(".")[0] in _CORE} | {"takeover.stray"}
    assert {point for _, point in CASES} >= core


_CORE = ("prepare", "release", "drain", "sweep", "adopt", "heal", "ledger", "mend")
