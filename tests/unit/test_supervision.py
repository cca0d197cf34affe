"""Standing work stands: whatever ends it, it is begun anew, and told once; and it ends when its owner says so."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from kubeletplugin.supervision import RESTART_SECONDS, SOUND_SECONDS, Supervisor, together
from kubeletplugin.troubles import Troubles
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

log = logging.getLogger("supervision")


async def cancelled() -> None:
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    await waited_for


async def recoverable() -> None:
    raise RecoverableError("disk full")


async def unforeseen() -> None:
    raise TypeError("odd answer")


async def no_lock() -> None:
    raise NotActiveError("the lease was busy")


async def returning() -> None:
    return


class Owner:
    def __init__(self, *works: Callable[[], Awaitable[None]]) -> None:
        """Each try meets the next of ``works``; after the last one it goes on for ever."""
        self.clock = VirtualClock()
        self.lost = False
        self.supervisor = Supervisor(self.clock, Troubles(log), self._is_lost)
        self.begun = 0
        self._works: Iterator[Callable[[], Awaitable[None]]] = iter(works)

    async def _is_lost(self) -> bool:
        return self.lost

    async def work(self) -> None:
        self.begun += 1
        await next(self._works, asyncio.Event().wait)()


@pytest.mark.parametrize("end", [recoverable, unforeseen, no_lock, cancelled, returning])
async def test_whatever_ends_the_work_it_is_begun_anew(end: Callable[[], Awaitable[None]]) -> None:
    owner = Owner(end, end)
    task = owner.supervisor.start("work", owner.work)
    await owner.clock.settle()
    assert owner.begun == 1
    await owner.clock.advance(2 * RESTART_SECONDS)
    assert owner.begun == 3
    assert not task.done()
    await owner.supervisor.stop()
    assert task.cancelled()


async def test_a_trouble_is_told_once_and_again_after_a_sound_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    owner = Owner(recoverable, recoverable)
    owner.supervisor.start("sweep", owner.work)
    await owner.clock.advance(3 * RESTART_SECONDS)
    assert [record.getMessage() for record in caplog.records] == ["sweep: disk full"]
    await owner.supervisor.stop()

    async def later() -> None:
        await owner.clock.sleep(SOUND_SECONDS)
        raise RecoverableError("disk full")

    again = Owner(recoverable, later)
    owner.clock = again.clock
    again.supervisor.start("sweep", again.work)
    await again.clock.advance(SOUND_SECONDS + 3 * RESTART_SECONDS)
    assert [record.getMessage() for record in caplog.records] == ["sweep: disk full"] * 3
    await again.supervisor.stop()


async def test_it_ends_with_the_lease() -> None:
    owner = Owner(no_lock)
    owner.lost = True
    task = owner.supervisor.start("work", owner.work)
    await asyncio.wait([task])
    assert task.exception() is None
    with pytest.raises(NotActiveError):
        await owner.supervisor.keep("work", no_lock)


async def test_what_has_to_succeed_once_is_tried_until_it_does() -> None:
    owner = Owner(unforeseen, returning)
    task = owner.supervisor.start("work", owner.work, once=True)
    await owner.clock.advance(3 * RESTART_SECONDS)
    assert owner.begun == 2
    assert task.done()


async def test_stopping_raises_nothing_and_leaves_nothing() -> None:
    owner = Owner()

    async def bad_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RecoverableError("clean up")

    tasks = [owner.supervisor.start("bad", bad_end), owner.supervisor.start("good", owner.work)]
    await owner.clock.settle()
    await owner.supervisor.stop()
    assert all(task.done() for task in tasks)


@pytest.mark.parametrize(
    ("end", "error"), [(recoverable, RecoverableError), (returning, None), (cancelled, asyncio.CancelledError)]
)
async def test_what_works_together_ends_together(
    end: Callable[[], Awaitable[None]], error: type[BaseException] | None
) -> None:
    ended = []

    async def other() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("other")

    async def first() -> None:
        await end()

    task = asyncio.ensure_future(together(first(), other()))
    await asyncio.wait([task])
    assert ended == ["other"]
    if error is asyncio.CancelledError:
        assert task.cancelled()
    else:
        assert type(task.exception()) is (error or type(None))


async def test_what_works_together_is_cancelled_together() -> None:
    ended = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    task = asyncio.ensure_future(together(work("one"), work("two")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert sorted(ended) == ["one", "two"]
