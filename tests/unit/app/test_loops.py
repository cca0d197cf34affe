"""Standing work goes on whatever happens, until it is stopped or the lease is another's."""

import asyncio

import pytest

from kubeletplugin.app.loops import RESTART_SECONDS, Loops
from kubeletplugin.errors import NotActiveError
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Rig:
    """``outcomes`` are what the work meets, one a round; then it waits for ever."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.clock = VirtualClock()
        self.lost = False
        self.loops = Loops(self.clock, self._lost)
        self.rounds = 0
        self._outcomes = list(outcomes)
        self.task = self.loops.start("count sheep", self._work)

    async def _lost(self) -> bool:
        return self.lost

    async def _work(self) -> None:
        self.rounds += 1
        if not self._outcomes:
            await asyncio.Event().wait()
        if (outcome := self._outcomes.pop(0)) is not None:
            raise outcome


async def test_work_that_fails_is_told_and_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(ValueError("sheep"), None, ValueError("sheep"))
    await rig.clock.settle()
    assert rig.rounds == 1
    for _ in range(3):
        await rig.clock.advance(RESTART_SECONDS)
    assert rig.rounds == 4
    assert [record.levelname for record in caplog.records].count("WARNING") == 1, "once"
    await rig.loops.stop()
    assert rig.task.cancelled()


async def test_it_ends_with_the_lease_and_not_while_that_is_busy() -> None:
    rig = Rig(NotActiveError("hold the lease: busy"), NotActiveError("hold the lease: epoch 1 is over"))
    await rig.clock.settle()
    assert not rig.task.done()
    rig.lost = True
    await rig.clock.advance(RESTART_SECONDS)
    assert rig.task.done()
    assert rig.rounds == 2


async def test_a_stop_ends_what_runs_once_too() -> None:
    rig = Rig()
    once = rig.loops.once("wait", asyncio.sleep(3600))
    await rig.clock.settle()
    await rig.loops.stop()
    assert once.cancelled() and rig.task.cancelled()
