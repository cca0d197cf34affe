"""NVML calls off the event loop: one daemon thread per key (a GPU's UUID, or the system), each call with a deadline.

NVML blocks and sometimes never comes back. A call past its deadline raises NvmlTimeoutError for its caller, and if it
is inside NVML its worker is stuck: until it returns, further calls with the same key fail at once, so that a dead GPU
costs one thread and no time, and the other GPUs nothing. A call that merely waited too long in line says nothing about
the one before it, which may have more time. A blocked C call can't be interrupted, therefore threads are daemons and
``close`` doesn't wait for them. Works for any Nvml.
"""

import asyncio
import contextvars
import queue
import threading
import time
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

_HANGS = "NVML hasn't come back from an earlier call"
_TOO_MANY = "too many NVML calls are waiting in line"
_STOPPING = "the agent makes no more NVML calls for it: it is stopping, or the GPU is gone"


@dataclass(slots=True, eq=False)
class _Job:
    run: Callable[[], Any]
    name: str
    seconds: float
    deadline: float
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def refused(self, why: str) -> NvmlTimeoutError:
        return NvmlTimeoutError(self.name, self.seconds, why)


class NvmlWorkers:
    """Use from one event loop."""

    def __init__(
        self,
        deadline: float = DEADLINE_SECONDS,
        queue_length: int = QUEUE_LENGTH,
        *,
        on_timeout: Callable[[str], object] = lambda key: None,
    ) -> None:
        """``on_timeout`` is called with the key of each call that ends in NvmlTimeoutError; it must return at once and
        not raise."""
        self._on_timeout = on_timeout
        self._deadline = deadline
        self._queue_length = queue_length
        self._workers: dict[str, _Worker] = {}
        self._closed = False
        self._ended: list[_Worker] = []

    async def call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts, timeout: float | None = None) -> T:
        """``fn(*args)`` in the worker of ``key``; ``timeout`` in seconds counts from now, waiting in line included.

        Raises what ``fn`` raises, or NvmlTimeoutError with the reason: no answer in time, stuck on an earlier call, or
        too many calls in line.
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
        deadline = time.monotonic() + seconds
        job = _Job(lambda: context.run(fn, *args), name, seconds, deadline, loop.create_future(), loop)
        try:
            worker.submit(job)
            done, _ = await asyncio.wait([job.future], timeout=seconds)
            if not done:
                worker.look_for_hang()
                raise NvmlTimeoutError(name, seconds)
            return job.future.result()  # type: ignore[no-any-return]
        except NvmlTimeoutError:
            self._on_timeout(key)
            raise
        finally:
            # Given up or cancelled: a call that is still in line is not to be made.
            job.future.cancel()

    @property
    def busy(self) -> bool:
        """Whether any call is inside NVML now. It may hang there without being past its deadline yet."""
        return any(worker.busy for worker in self._workers.values())

    def stuck(self, key: str) -> bool:
        """Whether a call with ``key`` is inside NVML past its deadline."""
        worker = self._workers.get(key)
        return worker is not None and worker.stuck

    def forget(self, key: str) -> None:
        """End the worker of a GPU that is gone; one that hangs ends when its call returns."""
        worker = self._workers.pop(key, None)
        if worker is not None:
            worker.end()

    def join(self, seconds: float) -> None:
        """After ``close``: blocks until the calls that were being made have come back, or for ``seconds``."""
        end = time.monotonic() + seconds
        for worker in self._ended:
            worker.join(max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """End all workers without waiting for them; calls in line fail with NvmlTimeoutError."""
        self._closed = True
        self._ended = list(self._workers.values())
        for key in list(self._workers):
            self.forget(key)


class _Worker:
    def __init__(self, key: str, queue_length: int) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(queue_length)
        self._lock = threading.Lock()
        self._running: _Job | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"nvml {key}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        with self._lock:
            return self._running is not None

    @property
    def stuck(self) -> bool:
        with self._lock:
            return self._overdue()

    def _overdue(self) -> bool:
        return self._running is not None and time.monotonic() >= self._running.deadline

    def submit(self, job: _Job) -> None:
        with self._lock:
            if self._overdue():
                raise job.refused(_HANGS)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise job.refused(_TOO_MANY) from None

    def look_for_hang(self) -> None:
        """To be called when somebody's time is over: if the call inside NVML hangs, everyone in line is told now."""
        with self._lock:
            if self._overdue():
                self._refuse_waiting(_HANGS)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self._refuse_waiting(_STOPPING)
        self._jobs.put_nowait(None)

    def _refuse_waiting(self, why: str) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                _settle(job, job.refused(why), None)

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
