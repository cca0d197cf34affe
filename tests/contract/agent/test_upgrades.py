"""Two versions of the agent on one node, as real processes: whatever becomes of the new one, pods are served.

Each story keeps calls coming. None fails, what was prepared stays as it is, and no slice is written.
"""

import asyncio
import itertools
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from deviceclasses.names import DRIVER_NAME
from gpuclaim.demo.kubelet import PodClaim, PodError
from kubeapi.client import RESOURCE_CLAIMS
from kubeletplugin.dra.sockets import answers
from kubeletplugin.lease.record import LeaseRecord, parse_record
from kubeletplugin.lease.watchdog import EXIT_STATUS
from kubeletplugin.ledger.schema import SCHEMA
from tests.contract.agent.node import AGENT_COMMAND, AgentNode, AgentProcess, until, until_true

pytestmark = pytest.mark.anyio

NEWER = SCHEMA + 1
BROKEN_OFF = re.compile("rpc error: code = Unavailable")


class Calls:
    """Pods that come and go on one GPU, one after the other, beside one that stays on another."""

    def __init__(self, node: AgentNode) -> None:
        self._node = node
        self.served = 0
        self.failures: list[str] = []
        self.deaf: list[str] = []
        """Moments at which nobody listened on any DRA socket."""

    async def run(self) -> None:
        for number in itertools.count():
            claim = self._node.allocate(f"short-{number}", "gpu-1", pod=f"pod-{number}")
            await self._until_it_works(partial(self._node.prepare, "short", claim))
            await self._until_it_works(partial(self._node.kubelet.unprepare, "short", [claim]))
            self.served += 1
            self._node.server.remove(RESOURCE_CLAIMS, claim.name, claim.namespace)
            await asyncio.sleep(0.02)

    async def _until_it_works(self, call: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await call()
                return
            except PodError as error:
                self.failures.append(str(error))
                await asyncio.sleep(0.02)

    async def go_on(self, count: int = 3) -> None:
        """Returns when so many more were served."""
        before = self.served
        await until_true(lambda: self.served >= before + count)

    async def sample(self) -> None:
        """The DRA sockets, every 50 ms as a kubelet may come."""
        while True:
            sockets = list(self._node.settings.plugin_dir.glob("dra-*.sock"))
            if not any(answers(path) for path in sockets):
                self.deaf.append(f"{sockets}")
            await asyncio.sleep(0.05)


@asynccontextmanager
async def calling(node: AgentNode, kills: int = 0) -> AsyncIterator[Calls]:
    """Ends with some more calls, and says that all was well. A process that is killed breaks off the call that is open
    at it, if there is one: nobody can help that."""
    stays = node.allocate("stays", "gpu-0", pod="stays")
    ids = await node.prepare("stays", stays)
    files, slices = node.claim_files(), node.slices()
    calls = Calls(node)
    tasks = [asyncio.create_task(calls.run()), asyncio.create_task(calls.sample())]
    try:
        await until_true(lambda: calls.served > 2)
        yield calls
        await calls.go_on()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    broken_off = [failure for failure in calls.failures if BROKEN_OFF.search(failure)]
    assert len(broken_off) <= kills
    assert (len(calls.failures) - len(broken_off), calls.deaf) == (0, []), calls.failures
    assert files.items() <= node.claim_files().items()
    assert node.slices() == slices
    await ends_well(node, stays, ids)


async def ends_well(node: AgentNode, stays: PodClaim, ids: list[str]) -> None:
    """The kubelet's memory lost, the same ids are given; then the claim goes and leaves nothing."""
    assert await node.holders("gpu-0") == ["stays"]
    await node.kubelet.restart()
    await until_true(lambda: node.kubelet.plugins.usable(DRIVER_NAME))
    assert await node.prepare("stays", stays) == ids
    await node.kubelet.unprepare("stays", [stays])
    assert await node.holders("gpu-0") == []


def lease(node: AgentNode) -> LeaseRecord:
    return parse_record((node.settings.plugin_dir / "lease").read_bytes()[:2048])


def registered(node: AgentNode) -> list[str]:
    """In the kubelet's order; the last one that is connected is called."""
    return [Path(plugin.endpoint).stem.removeprefix("dra-") for plugin in node.kubelet.plugins.plugins(DRIVER_NAME)]


async def serves(node: AgentNode, name: str) -> None:
    """It is active, has its slices, and is whom the kubelet calls."""

    async def does() -> bool:
        chosen = node.kubelet.plugins.choose(DRIVER_NAME)
        called = chosen is not None and chosen.connected and chosen.endpoint.endswith(f"dra-{name}.sock")
        return called and await is_ready(node.settings.plugin_dir / f"status-{name}.sock")

    await until(does)


async def is_ready(socket: Path) -> bool:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        async with session.get("http://agent/readyz") as response:
            return response.status == 200


async def launch(node: AgentNode, name: str, *version: str, **flags: str) -> AgentProcess:
    """``version`` as in tests.versions; without any it is this one."""
    words = [f"--pod-uid={name}", *(f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items())]
    command = ("-m", "tests.versions", *version, "--") if version else AGENT_COMMAND
    return await node.start_process(name, *words, command=command)


async def start(node: AgentNode, name: str, *version: str) -> AgentProcess:
    process = await launch(node, name, *version)
    await serves(node, name)
    return process


async def test_an_upgrade_and_a_roll_back(node: AgentNode) -> None:
    old = await start(node, "old")
    async with calling(node):
        new = await start(node, "new")
        assert await old.end(signal.SIGTERM) == 0
        again = await start(node, "old-again")
        assert await new.end(signal.SIGTERM) == 0
        await serves(node, "old-again")
    assert "Traceback" not in old.output + new.output + again.output


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"rescan_interval": "soon"}, "rescan-interval"),
        ({"machine": "dgx-h10"}, "no such profile"),
        ({"kubeconfig": "/nowhere"}, "read kubeconfig /nowhere"),
    ],
)
async def test_a_version_that_cant_start_never_gets_a_call(node: AgentNode, flags: dict[str, str], words: str) -> None:
    await start(node, "old")
    async with calling(node):
        new = await launch(node, "new", **flags)
        assert await new.status() in (1, 2)
        assert words in new.output
        assert (registered(node), lease(node).epoch) == (["old"], 1)


async def test_a_version_whose_slices_are_refused_never_gets_a_call(node: AgentNode) -> None:
    """It waits, for as long as the other one serves; what the other has published stays."""
    await start(node, "old")
    node.server.faults.fail(422, times=1_000_000, resource="resourceslices", verb="create", message="not like this")
    async with calling(node):
        new = await launch(node, "new")
        await until_true(lambda: "not like this" in new.output)
        await asyncio.sleep(0.5)
        assert (registered(node), lease(node).epoch, new.ended) == (["old"], 1, False)
        node.server.faults.release()
        await serves(node, "new")


@pytest.mark.parametrize(
    "point", ["register.published", "register.confirmed", "takeover.acquired", "takeover.recovered"]
)
async def test_a_version_that_dies_between_registering_and_serving(node: AgentNode, point: str) -> None:
    """Again and again, as a supervisor would start it."""
    await start(node, "old")
    async with calling(node, kills=2) as calls:
        for _ in range(2):
            new = await launch(node, "new", f"dies-at={point}")
            assert await new.status() == -signal.SIGKILL, new.output
            await calls.go_on()
        await serves(node, "old")
        assert lease(node).epoch == {"register.published": 1, "register.confirmed": 1}.get(point, 5)


async def test_a_version_that_dies_after_its_take_over_gives_it_back(node: AgentNode) -> None:
    await start(node, "old")
    async with calling(node, kills=1):
        new = await start(node, "new")
        await new.end(signal.SIGKILL)
        await serves(node, "old")
        assert lease(node).epoch == 3


async def test_a_version_whose_work_cant_begin_leaves_it_to_the_other(node: AgentNode) -> None:
    old = await start(node, "old")
    async with calling(node) as calls:
        new = await launch(node, "new", "cant-activate")
        await until_true(lambda: "no such luck" in new.output)
        await calls.go_on(10)
        assert lease(node).instance == "old"
        assert lease(node).epoch <= 5, "it doesn't ask at every call"
        assert await new.end(signal.SIGTERM) == 0
    assert not old.ended


async def test_an_old_version_that_wont_leave_is_passed_over(node: AgentNode) -> None:
    old = await start(node, "old", "wont-leave")
    async with calling(node):
        new = await start(node, "new")
        old.send(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert not old.ended
        assert await old.end(signal.SIGKILL) == -signal.SIGKILL
    assert not new.ended
    assert "active instance didn't yield, take over without it" in new.output


async def test_a_stopped_version_is_passed_over_and_may_wake(node: AgentNode) -> None:
    await start(node, "old")
    async with calling(node):
        new = await start(node, "new")
        new.send(signal.SIGSTOP)
        await serves(node, "old")
        assert registered(node) == ["new", "old"]
        new.send(signal.SIGCONT)
        await until_true(lambda: "step back" in new.output)
        await serves(node, "old")
        assert await new.end(signal.SIGTERM) == 0


async def test_a_version_whose_event_loop_stands_still_ends_itself(node: AgentNode) -> None:
    await start(node, "old")
    new = await launch(node, "new", "blocks-at=prepare.read")
    await serves(node, "new")
    victim = node.allocate("victim", "gpu-2", pod="victim")
    with pytest.raises(PodError):
        await node.prepare("victim", victim)
    assert await new.status() == EXIT_STATUS
    assert "its event loop stands still" in new.output
    await serves(node, "old")
    async with calling(node):
        assert await node.prepare("victim", victim)


async def test_a_roll_back_to_a_version_that_can_use_the_newer_ledger(node: AgentNode) -> None:
    new = await start(node, "new", f"schema={NEWER}")
    async with calling(node):
        await start(node, "old")
        assert await new.end(signal.SIGTERM) == 0
        again = await start(node, "new-again", f"schema={NEWER}")
        assert "Traceback" not in new.output + again.output


async def test_a_roll_back_too_far_says_so_and_the_newer_version_goes_on(node: AgentNode) -> None:
    await start(node, "new", f"schema={NEWER}", f"min-writer={NEWER}")
    async with calling(node):
        for _ in range(2):
            old = await launch(node, "old")
            assert await old.status() == 1
            assert f"may be written by schema {NEWER} and newer only" in old.output
            assert "run the newer version again" in old.output
            assert len(old.output.strip().splitlines()[-1]) < 400
        assert (registered(node), lease(node).epoch) == (["new"], 1)
