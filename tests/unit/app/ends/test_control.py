"""The instance's own HTTP end: what it answers, who may ask, and where its socket is."""

import asyncio
import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kubeletplugin.app.ends import control, http
from kubeletplugin.app.ends.control import ControlServer
from kubeletplugin.errors import FatalError, RecoverableError

pytestmark = pytest.mark.anyio

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path that is short enough for a socket, whatever pytest's own is."""
    with tempfile.TemporaryDirectory(prefix="gc-", dir="/tmp") as name:
        yield Path(name)


class Instance:
    def __init__(self) -> None:
        self.reason = ""
        self.status: Any = {"state": "active"}
        self.trouble: Exception | None = None

    async def report(self) -> dict[str, Any]:
        if self.trouble is not None:
            raise self.trouble
        answer: dict[str, Any] = self.status
        return answer

    def unready(self) -> str:
        return self.reason


async def no_metrics(accept: str) -> tuple[bytes, str]:
    return b"", "text/plain"


@contextlib.asynccontextmanager
async def serving(path: Path, instance: Instance) -> AsyncIterator[ControlServer]:
    server = ControlServer(path, instance.report, instance.unready, no_metrics)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def get(path: Path, what: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
        session.get(f"http://agent{what}") as response,
    ):
        return response.status, await response.text()


async def test_answers(folder: Path) -> None:
    path, instance = folder / "status-a.sock", Instance()
    async with serving(path, instance):
        assert await get(path, "/status") == (200, '{"state": "active"}')
        assert await get(path, "/readyz") == (200, "ok")
        instance.reason = "the kubelet hasn't registered this instance yet"
        assert await get(path, "/readyz") == (503, instance.reason)
        assert (await get(path, "/other"))[0] == 404


async def test_a_status_that_cant_be_told_says_why(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, instance = folder / "status-a.sock", Instance()
    instance.trouble = RecoverableError("read the ledger: disk I/O error")
    async with serving(path, instance):
        assert await get(path, "/status") == (503, "read the ledger: disk I/O error")
    assert not caplog.records


async def test_only_root_may_ask_from_the_first_moment_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, modes = folder / "status-a.sock", []
    listen = socket.socket.listen

    def note(self: socket.socket, backlog: int = 100) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", note)
    former = os.umask(0)
    try:
        async with serving(path, Instance()):
            modes.append(stat.S_IMODE(path.stat().st_mode))
    finally:
        os.umask(former)
    assert modes
    assert set(modes) == {0o600}


async def test_the_socket_of_a_dead_instance_with_the_same_name_is_replaced(folder: Path) -> None:
    """A container that restarts in its pod has the pod's UID again."""
    path = folder / "status-a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path, Instance()):
        assert (await get(path, "/readyz"))[0] == 200
    assert not path.exists()


async def test_stop_ends_requests_that_wait_and_may_come_before_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "STOP_SECONDS", 0.01)
    path = folder / "status-a.sock"
    asked = asyncio.Event()

    async def never() -> dict[str, Any]:
        asked.set()
        await asyncio.Event().wait()
        return {}

    server = ControlServer(path, never, lambda: "", no_metrics)
    await server.stop()
    await server.start()
    request = asyncio.create_task(get(path, "/status"))
    await asked.wait()
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await request
    assert not path.exists()


async def test_a_folder_that_is_missing_leaves_nothing_open(folder: Path) -> None:
    server = ControlServer(folder / "none" / "status-a.sock", Instance().report, lambda: "", no_metrics)
    with pytest.raises(OSError, match="No such file"):
        await server.start()
    await server.stop()


@pytest.mark.parametrize(
    ("length", "name"),
    [(20, "status-{uid}.sock"), (107 - 1 - 48, "status-{uid}.sock"), (107 - 48, "status-{short}.sock")],
)
async def test_a_long_folder_gives_a_short_name(length: int, name: str) -> None:
    folder, uid = Path("/" + "f" * (length - 1)), "0f8b3a52-7d0e-4a53-9be5-9e6d8c6f0a11"
    path = control.socket_path(folder, DRIVER, uid)
    short = path.name.removeprefix("status-").removesuffix(".sock")
    assert path == folder / name.format(uid=uid, short=short)
    assert len(os.fsencode(path)) <= 107
    assert path == control.socket_path(folder, DRIVER, uid)


async def test_a_folder_that_is_too_long_says_what_to_do() -> None:
    with pytest.raises(FatalError, match="shorter --kubelet-root-dir"):
        control.socket_path(Path("/" + "f" * 100), DRIVER, "0f8b3a52-7d0e-4a53-9be5-9e6d8c6f0a11")
