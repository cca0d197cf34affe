"""NVML calls off the event loop: one daemon thread per key (a GPU's UUID, or the system), each call with a deadline.

NVML blocks and sometimes never comes back. A call that overruns its deadline raises NvmlTimeoutError for its caller
and marks its worker stuck: until that call returns, further calls with the same key fail at once, so that a dead GPU
costs one thread and no time, and the other GPUs nothing. A blocked C call can't be interrupted, therefore threads are
daemons and ``close`` doesn't wait for them. Works for any Nvml.
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

from kubeletplugin.nvml.errors import NvmlTimeoutError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SYSTEM_KEY = "system"
"""Key of calls that concern no single GPU."""

DEADLINE_SECONDS = 5.0
"""Longer than any healthy call, a MIG change aside; well under the time that a Prepare may take."""

QUEUE_LENGTH = 64
"""More calls than one GPU's probe, health check and prepares make at a time; beyond it the caller is told at once."""


@dataclass(slots=True, eq=False)
class _Job:
    run: Callable[[], Any]
    name: str
    seconds: float
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    returned: bool = False


class NvmlWorkers:
    """Use from one event loop."""

    def __init__(self, deadline: float = DEADLINE_SECONDS, queue_length: int = QUEUE_LENGTH) -> None:
        self._deadline = deadline
        self._queue_length = queue_length
        self._workers: dict[str, _Worker] = {}
        self._closed = False

    async def call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts, timeout: float | None = None) -> T:
        """``fn(*args)`` in the worker of ``key``; ``timeout`` in seconds counts from now, waiting in line included.

        Raises what ``fn`` raises, or NvmlTimeoutError: no answer in time, stuck on an earlier call, or too many calls
        in line.
        """
        name = getattr(fn, "__name__", repr(fn))
        if self._closed:
            raise RuntimeError(f"call {name}: the NVML workers are closed")
        if key not in self._workers:
            self._workers[key] = _Worker(key, self._queue_length)
        worker = self._workers[key]
        seconds = self._deadline if timeout is None else timeout
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        job = _Job(lambda: context.run(fn, *args), name, seconds, loop.create_future(), loop)
        worker.submit(job)
        try:
            done, _ = await asyncio.wait([job.future], timeout=seconds)
            if not done:
                worker.give_up(job)
                raise NvmlTimeoutError(name, seconds)
            return job.future.result()  # type: ignore[no-any-return]
        finally:
            # Given up or cancelled: a call that is still in line is not to be made.
            job.future.cancel()

    def stuck(self, key: str) -> bool:
        """Whether a call with ``key`` has overrun its deadline and not come back yet."""
        worker = self._workers.get(key)
        return worker is not None and worker.stuck

    def forget(self, key: str) -> None:
        """End the worker of a GPU that is gone; one that hangs ends when its call returns."""
        worker = self._workers.pop(key, None)
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """End all workers without waiting for them; calls in line fail with NvmlTimeoutError."""
        self._closed = True
        for key in list(self._workers):
            self.forget(key)


class _Worker:
    def __init__(self, key: str, queue_length: int) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(queue_length)
        self._lock = threading.Lock()
        self._running: _Job | None = None
        self._stuck = False
        self._ended = False
        threading.Thread(target=self._run, name=f"nvml {key}", daemon=True).start()

    @property
    def stuck(self) -> bool:
        with self._lock:
            return self._stuck

    def submit(self, job: _Job) -> None:
        with self._lock:
            if self._stuck:
                raise NvmlTimeoutError(job.name, job.seconds)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise NvmlTimeoutError(job.name, job.seconds) from None

    def give_up(self, job: _Job) -> None:
        """The caller of ``job`` waits no longer: unless it has just returned, it or the call before it hangs, and
        everyone in line is told now."""
        with self._lock:
            self._stuck = self._running is not None and not job.returned
            if self._stuck:
                self._refuse_waiting()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self._refuse_waiting()
        self._jobs.put_nowait(None)

    def _refuse_waiting(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                _settle(job, NvmlTimeoutError(job.name, job.seconds), None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with self._lock:
                self._running = job
            error, result = None, None
            if not job.future.done():
                try:
                    result = job.run()
                except BaseException as e:
                    error = e
            with self._lock:
                self._running = None
                self._stuck = False
                job.returned = True
                ended = self._ended
            _settle(job, error, result)
            # Nothing of a call may stay alive until the next one.
            del job, error, result
            if ended:
                return


def _settle(job: _Job, error: BaseException | None, result: object) -> None:
    def settle() -> None:
        if job.future.done():
            return
        if error is None:
            job.future.set_result(result)
        else:
            job.future.set_exception(error)

    try:
        job.loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop ended before the hung call came back: nobody is left to tell.
        return
