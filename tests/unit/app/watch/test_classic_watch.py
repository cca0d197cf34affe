"""When the kubelet is asked what other device plugins have given out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeletplugin.app.watch.classic_watch import ClassicWatch
from kubeletplugin.classic.pod_resources import PodDevices
from tests.fakes.clock import VirtualClock
from tests.unit.classic.node import AGENT, TRAIN, Node, record

pytestmark = pytest.mark.anyio


class Watched(Node):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = VirtualClock()
        self.told: list[tuple[str, frozenset[str]]] = []
        self.watch = ClassicWatch(
            self.judge, self.file.path, self, self.clock, lambda uid, pods: self.told.append((uid, pods))
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def lists_within(self, seconds: int) -> int:
        before = self.lists
        for _ in range(seconds):
            await self.clock.until_asleep()
            await self.clock.advance(1)
        return self.lists - before


@pytest.fixture
def node(tmp_path: Path) -> Watched:
    return Watched(tmp_path, listed=PodDevices(frozenset({AGENT})))


async def test_looks_come_soon_in_doubt_and_rarely_else(node: Watched) -> None:
    async with node.running():
        await node.watch.settled.wait()
        assert await node.lists_within(91) == 3
        node.run_pod()
        async with asyncio.timeout(10):
            await node.judge.rewritten.wait()
        assert await node.lists_within(3) == 1
        node.end_pod()
        assert await node.lists_within(40) == 2
        assert node.judge.holds == {}


async def test_the_checkpoint_is_read_at_a_change_whatever_the_list_does(node: Watched) -> None:
    asked = asyncio.Event()

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    node.list = never  # type: ignore[method-assign]
    async with node.running():
        await asked.wait()
        for taken in (True, False, True):
            node.allocate(*(["uid-train"] if taken else []))
            async with asyncio.timeout(10):
                await node.judge.rewritten.wait()
            node.judge.rewritten.clear()
        assert node.problem and not node.watch.settled.is_set()


async def test_what_may_be_given_back_soon_is_not_settled(node: Watched) -> None:
    node.allocate("uid-train")
    async with node.running():
        await node.lists_within(1)
        assert node.problem and not node.watch.settled.is_set()
        await node.lists_within(2)
        async with asyncio.timeout(10):
            await node.watch.settled.wait()
        assert not node.problem


async def test_a_checkpoint_that_cannot_be_read_is_said_once_and_looked_at_soon(
    node: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    node.write("{")
    async with node.running():
        assert await node.lists_within(20) >= 9
        assert len([line for line in caplog.messages if "kubelet_internal_checkpoint" in line]) == 1


async def test_pods_of_our_claims_are_told_by_their_uids(node: Watched) -> None:
    node.known["uid-train"] = record("uid-train", TRAIN)
    node.listed = PodDevices(frozenset({TRAIN, AGENT}), (), {"claim-1": frozenset({TRAIN, ("team", "unknown")})})
    async with node.running():
        await node.watch.settled.wait()
    assert node.told == [("claim-1", frozenset({"uid-train"}))]
