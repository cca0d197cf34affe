"""Log lines as text or JSON with fields, and all stacks on SIGUSR2.

A field is given by ``extra``: ``log.info("prepared", extra={"claim": uid})``. Every key of it is printed, whatever
its name: ``gpu``, ``device``, ``claim`` and ``pod`` first, then the caller's own in their order. ``node`` is on every
line. An empty value is left out.
"""

import asyncio
import io
import json
import logging
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

FIRST_FIELDS = ("gpu", "device", "claim", "pod")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has, so that whatever else it has came by ``extra``. Python 3.12 added ``taskName``."""


def _fields(record: logging.LogRecord, node: str) -> Mapping[str, Any]:
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    ordered = {"node": node} | {name: given[name] for name in FIRST_FIELDS if name in given} | given
    return {name: value for name, value in ordered.items() if value not in (None, "")}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``2026-01-01T00:00:00.000Z INFO message node=... claim=... error="two words"``"""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_word(value)}" for name, value in _fields(record, self._node).items())
        line = f"{_time(record)} {record.levelname} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: object) -> str:
    """Quoted where the end of the value, or of the line, couldn't be told otherwise."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    plain = text.isprintable() and not any(character in ' "=' for character in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """One JSON object a line; numbers and lists stay what they are."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry["message"] = record.getMessage()
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        for name, value in _fields(record, self._node).items():
            entry[f"{name}_" if name in entry else name] = value
        return json.dumps(entry, default=str)


def configure(level: str, form: str, node: str = "") -> None:
    """Logs to stderr. grpc and aiohttp speak only of trouble."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(node) if form == "json" else TextFormatter(node))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    least = max(logging.getLogger().level, logging.WARNING)
    for name in ("aiohttp", "grpc", "asyncio", "kubernetes"):
        logging.getLogger(name).setLevel(least)


def all_stacks(loop: asyncio.AbstractEventLoop | None) -> str:
    """The stacks of every thread, and of every task of the loop where there is one, from any thread."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks(loop) if loop else ():
        out.write(f"--- task {task.get_name()}\n{''.join(_awaiting(task.get_coro()))}")
    return out.getvalue()


def _awaiting(work: object) -> list[str]:
    """From a task's coroutine down to what it waits for: Task.get_stack knows only the first of them."""
    summary = traceback.StackSummary()
    while work is not None:
        frame: FrameType | None = _first(work, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            summary.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        work = _first(work, "cr_await", "gi_yieldfrom", "ag_await")
    return summary.format()


def _first(work: object, *names: str) -> Any:
    return next((found for name in names if (found := getattr(work, name, None)) is not None), None)


class StacksOnSignal:
    """SIGUSR2 logs all stacks, and nothing stops.

    A thread of its own collects them, so that they are there when the loop stands still, which is when they are
    wanted; the handler itself may do nothing that takes a lock, since it interrupts whoever has it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._former: Any = None
        self._thread = threading.Thread(target=self._serve, name="stacks", daemon=True)

    def __enter__(self) -> "StacksOnSignal":
        self._thread.start()
        self._former = signal.signal(signal.SIGUSR2, lambda number, frame: self._asked.put(True))
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGUSR2, self._former)
        self._asked.put(False)
        self._thread.join()

    def _serve(self) -> None:
        while self._asked.get():
            log.warning("stacks on request:\n%s", all_stacks(self._loop))
