"""Log lines: nothing that a caller gives as a field is lost, and a stuck agent can be asked where it is."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kubeletplugin.app import logs

AT = 1767225600.25
TIME = "2026-01-01T00:00:00.250Z"


def record(
    message: str = "prepared",
    *args: object,
    level: int = logging.INFO,
    extra: Mapping[str, object] = MappingProxyType({}),
) -> logging.LogRecord:
    made = logging.getLogger("kubeletplugin.test").makeRecord(
        "kubeletplugin.test", level, "file.py", 1, message, args, None, extra=extra
    )
    made.created = AT
    return made


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        ({}, ""),
        ({"claim": "c1", "pod": "p1", "device": "gpu-0", "gpu": "GPU-1"}, " gpu=GPU-1 device=gpu-0 claim=c1 pod=p1"),
        ({"error": "no such file"}, ' error="no such file"'),
        ({"pid": 17, "epoch": 0}, " pid=17 epoch=0"),
        ({"claims": ["c1", "c2"]}, " claims=c1,c2"),
        ({"zone": "z", "claim": "c1", "area": "a"}, " claim=c1 zone=z area=a"),
        ({"claim": None, "pod": "", "reason": False}, " reason=False"),
        ({"error": 'a "b"\nc=d'}, ' error="a \\"b\\"\\nc=d"'),
        ({"reason": "größer"}, " reason=größer"),
    ],
)
def test_text_prints_every_field(extra: dict[str, object], shown: str) -> None:
    assert logs.TextFormatter().format(record(extra=extra)) == f"{TIME} INFO prepared{shown}"


def test_text_puts_the_node_on_every_line_and_the_stack_of_an_error_below() -> None:
    made = record("prepare claim %s", "ns/c", level=logging.ERROR)
    try:
        raise ValueError("odd")
    except ValueError:
        made.exc_info = sys.exc_info()
    lines = logs.TextFormatter("node-a").format(made).splitlines()
    assert lines[0] == f"{TIME} ERROR prepare claim ns/c node=node-a"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: odd"


@pytest.mark.parametrize(
    ("extra", "fields"),
    [
        ({}, {}),
        ({"claim": "c1", "device": "gpu-0"}, {"claim": "c1", "device": "gpu-0"}),
        ({"claims": ["c1", "c2"], "epoch": 3}, {"claims": ["c1", "c2"], "epoch": 3}),
        ({"error": OSError(2, "no such file")}, {"error": "[Errno 2] no such file"}),
        ({"pod": ""}, {}),
        ({"level": "high", "time": "noon"}, {"level_": "high", "time_": "noon"}),
    ],
)
def test_json_prints_every_field(extra: dict[str, object], fields: dict[str, Any]) -> None:
    line = logs.JsonFormatter("node-a").format(record("take over\n%s", "x", extra=extra))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": TIME,
        "level": "info",
        "logger": "kubeletplugin.test",
        "message": "take over\nx",
        "node": "node-a",
        **fields,
    }


def test_json_holds_the_stack_of_an_error() -> None:
    made = record(level=logging.ERROR)
    try:
        raise ValueError("odd")
    except ValueError:
        made.exc_info = sys.exc_info()
    entry = json.loads(logs.JsonFormatter().format(made))
    assert entry["exception"].startswith("Traceback")
    assert entry["exception"].endswith("ValueError: odd")
    assert "node" not in entry


def test_no_key_that_every_record_has_is_taken_for_a_field() -> None:
    """On this Python, whichever it is."""
    with_task: list[logging.LogRecord] = []

    async def emit() -> None:
        with_task.append(record())

    asyncio.run(emit())
    assert logs.TextFormatter().format(with_task[0]) == f"{TIME} INFO prepared"


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    named = {name: logging.getLogger(name).level for name in ("aiohttp", "grpc", "asyncio", "kubernetes")}
    yield
    root.handlers, root.level = handlers, level
    for name, former in named.items():
        logging.getLogger(name).setLevel(former)


@pytest.mark.parametrize(
    ("level", "ours", "theirs"),
    [
        ("debug", "debug info warning error", "warning error"),
        ("info", "info warning error", "warning error"),
        ("error", "error", "error"),
    ],
)
@pytest.mark.usefixtures("logging_restored")
def test_levels(level: str, ours: str, theirs: str, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(level, "text", "node-a")
    for name in ("kubeletplugin.x", "aiohttp.server"):
        for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logging.getLogger(name).log(number, "%s-%s", name, logging.getLevelName(number).lower())
    shown = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert shown == [f"kubeletplugin.x-{word}" for word in ours.split()] + [
        f"aiohttp.server-{word}" for word in theirs.split()
    ]


@pytest.mark.usefixtures("logging_restored")
def test_json_is_chosen_by_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json", "node-a")
    logging.getLogger("kubeletplugin.x").warning("one", extra={"claim": "c1"})
    entry = json.loads(capsys.readouterr().err)
    assert (entry["message"], entry["node"], entry["claim"]) == ("one", "node-a", "c1")


# --- stacks ---
async def innermost(gate: asyncio.Event) -> None:
    await gate.wait()


async def generator(gate: asyncio.Event) -> AsyncIterator[None]:
    await innermost(gate)
    yield


async def outermost(gate: asyncio.Event) -> None:
    async for _ in generator(gate):
        pass


@pytest.mark.anyio
async def test_stacks_hold_threads_and_what_each_task_waits_for() -> None:
    gate = asyncio.Event()
    tasks = [
        asyncio.create_task(innermost(gate), name="short"),
        asyncio.create_task(outermost(gate), name="long"),
    ]
    await asyncio.sleep(0)
    text = await asyncio.to_thread(logs.all_stacks, asyncio.get_running_loop())
    gate.set()
    await asyncio.gather(*tasks)
    assert "--- thread MainThread" in text
    short = text.partition("--- task short\n")[2].partition("--- ")[0]
    assert "in innermost" in short
    assert "await gate.wait()" in short
    assert "in wait" in short
    assert "in outermost" in text.partition("--- task long\n")[2].partition("--- ")[0]


@pytest.mark.anyio
async def test_signal_logs_the_stacks(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    former, loop, logged = signal.getsignal(signal.SIGUSR2), asyncio.get_running_loop(), asyncio.Event()

    def note(entry: logging.LogRecord) -> bool:
        loop.call_soon_threadsafe(logged.set)
        return True

    monkeypatch.setattr(logs.log, "filters", [note])
    with logs.StacksOnSignal(loop):
        os.kill(os.getpid(), signal.SIGUSR2)
        await logged.wait()
    assert "stacks on request" in caplog.text
    assert "test_signal_logs_the_stacks" in caplog.text
    assert signal.getsignal(signal.SIGUSR2) is former


STUCK = textwrap.dedent(
    """
    import asyncio, sys, time
    from kubeletplugin.app import logs

    def stand_still():
        print("stuck", flush=True)
        while True:
            time.sleep(60)

    async def main():
        with logs.StacksOnSignal(asyncio.get_running_loop()):
            stand_still()

    logs.configure("info", "text")
    asyncio.run(main())
    """
)


def test_signal_is_answered_while_the_loop_stands_still() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGUSR2)
            seen: list[str] = []
            while not any("in stand_still" in line for line in seen):
                line = process.stderr.readline()
                assert line, f"it ended: {seen}"
                seen.append(line)
            assert process.poll() is None
        finally:
            process.kill()
    assert "stacks on request" in seen[0]
