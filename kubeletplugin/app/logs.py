"""Log lines as text or JSON, with claim, pod, device and node as fields; and all stacks on SIGUSR2.

A field is given by ``extra``: ``log.info("prepared", extra={"claim": uid})``.
"""

import asyncio
import io
import json
import logging
import signal
import sys
import threading
import traceback
from datetime import UTC, datetime

FIELDS = ("node", "claim", "pod", "device", "gpu")


def _fields(record: logging.LogRecord) -> dict[str, str]:
    return {name: str(value) for name in FIELDS if (value := record.__dict__.get(name)) not in (None, "")}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """``2026-01-01T00:00:00.000Z INFO message claim=... device=...``"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage()} | _fields(record)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(level: str, form: str) -> None:
    """Logs to stderr. grpc and aiohttp speak only of trouble."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("aiohttp", "grpc", "asyncio", "kubernetes"):
        logging.getLogger(name).setLevel(logging.WARNING)


def all_stacks() -> str:
    """The stacks of every thread and every task of the running loop."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks():
        out.write(f"--- task {task.get_name()}\n")
        task.print_stack(file=out)
    return out.getvalue()


def dump_stacks_on_signal(loop: asyncio.AbstractEventLoop) -> None:
    """SIGUSR2 logs all stacks; nothing stops."""
    log = logging.getLogger(__name__)
    loop.add_signal_handler(signal.SIGUSR2, lambda: log.warning("stacks on request:\n%s", all_stacks()))
