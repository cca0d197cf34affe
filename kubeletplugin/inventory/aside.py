"""Blocking work that may hang for ever, off the event loop and with a deadline.

A daemon thread of its own, not the loop's pool, whose threads are waited for when the process ends. One run at a time:
while one hangs, the next is refused at once, so that what hangs costs one thread.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")


class Aside:
    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = False

    async def run(self, seconds: float, fn: Callable[[*Ts], object], *args: *Ts) -> None:
        """Raises what ``fn`` raises, or TimeoutError when it, or the run before, hangs."""
        if self._busy:
            raise TimeoutError("it still hangs")
        self._busy = True
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._work, args=(loop, done, fn, args), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread is to be had now; the next run may get one.
            self._busy = False
            raise
        finished, _ = await asyncio.wait([done], timeout=seconds)
        if not finished:
            done.cancel()
            raise TimeoutError(f"no end within {seconds:g} s")
        done.result()

    def _work(
        self,
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[None],
        fn: Callable[..., object],
        args: tuple[Any, ...],
    ) -> None:
        error: BaseException | None = None
        try:
            fn(*args)
        except BaseException as raised:
            error = raised
        # Before the caller is told: the thread itself lives on for a moment, and the caller may come again at once.
        self._busy = False

        def settle() -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            # The loop has ended: nobody is left to tell.
            return
