"""An event loop whose time passes only when nothing is left to do: minutes of waiting run in milliseconds, the same
way each time. A loop with nothing to do and nobody to wait for is an error, not a hang."""

import asyncio
import datetime
import selectors
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

EPOCH = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Never sleeps: what it would have slept is added to the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits for something that nobody will do")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """kubeletplugin.clock.Clock over the running loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime.datetime:
        return EPOCH + datetime.timedelta(seconds=self.monotonic() - 1000.0)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class InlineExecutor(Executor):
    """Runs everything at once, in the caller's thread."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


def run(work: Any) -> Any:
    """Runs a coroutine on a loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
