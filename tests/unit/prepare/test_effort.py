"""Work that isn't stopped halfway."""

import asyncio

import pytest

from kubeletplugin.prepare.effort import to_the_end

pytestmark = pytest.mark.anyio


class Work:
    """Two steps; the test opens the gate between them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.done = False
        self.error = error

    async def run(self) -> str:
        await self.gate.wait()
        self.done = True
        if self.error:
            raise self.error
        return "result"


async def test_an_undisturbed_caller_gets_result_or_error() -> None:
    work = Work()
    work.gate.set()
    assert await to_the_end(work.run()) == "result"
    work = Work(ValueError("no"))
    work.gate.set()
    with pytest.raises(ValueError, match="no"):
        await to_the_end(work.run())


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_a_cancelled_caller_ends_after_the_work(error: Exception | None) -> None:
    work = Work(error)
    caller = asyncio.ensure_future(to_the_end(work.run()))
    await asyncio.sleep(0)
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
    assert not caller.done()

    work.gate.set()
    await asyncio.wait({caller})

    assert work.done
    assert caller.cancelled()


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancellation_as_the_work_ends_is_not_lost(turns: int) -> None:
    """Else the canceller would wait for a caller that goes on."""
    work = Work()
    caller = asyncio.ensure_future(to_the_end(work.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    work.gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    asked = caller.cancel()
    await asyncio.wait({caller})
    assert caller.cancelled() == asked
    assert work.done


async def test_work_that_is_cancelled_itself_cancels_its_caller() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await to_the_end(cancelled())
