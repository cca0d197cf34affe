"""What the active instance removes of dead ones, and that its looks go on, on a virtual clock."""

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeletplugin.dra import housekeeping
from kubeletplugin.dra.housekeeping import Housekeeper, HousekeepingTiming
from kubeletplugin.dra.sockets import choose_paths
from tests.fakes.clock import VirtualClock
from tests.unit.dra.takeovers import Peers
from tests.unit.dra.test_sockets import DRIVER, bind

pytestmark = pytest.mark.anyio


class Watched(Peers):
    """Each watch ends when a test lets it; ``failure`` is raised instead, once."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[str] = []
        self.end = asyncio.Event()
        self.failure: Exception | None = None
        self.says_so = True

    async def until_gone(self, socket: str) -> bool:
        self.watched.append(socket)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        await self.end.wait()
        return self.says_so


class Rig:
    def __init__(self, folder: Path) -> None:
        self.plugin, registry = folder / "p", folder / "r"
        self.plugin.mkdir()
        registry.mkdir()
        self.clock, self.peers = VirtualClock(), Watched()
        self.resent = 0
        self.housekeeper = Housekeeper(
            DRIVER,
            choose_paths(registry, self.plugin, DRIVER, "me"),
            self.peers,
            self._resend,
            clock=self.clock,
            timing=HousekeepingTiming(look=5.0, settle=1.0),
        )

    def _resend(self) -> None:
        self.resent += 1

    def dead(self, name: str) -> Path:
        bind(self.plugin / name, listen=False).close()
        return self.plugin / name

    def living(self, name: str) -> socket.socket:
        return bind(self.plugin / name, listen=True)


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(short_path)
    yield rig
    rig.housekeeper.stop()
    await rig.clock.settle()


async def test_sockets_of_dead_instances_go_after_two_looks(rig: Rig) -> None:
    dead = [rig.dead("dra-gone.sock"), rig.dead("status-gone.sock")]
    file = rig.plugin / "status-file.sock"
    file.write_text("not a socket")
    with rig.living("status-here.sock"):
        rig.housekeeper.start()
        await rig.clock.settle()
        assert all(path.exists() for path in dead), "one look may have met it between bind and listen"
        await rig.clock.advance(5)
        assert not any(path.exists() for path in dead)
        await rig.clock.advance(20)
        assert (rig.plugin / "status-here.sock").exists()
    assert file.exists()


async def test_one_that_hangs_has_not_ended_and_is_told_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig.peers.says_so = False
    rig.peers.end.set()
    with rig.living("dra-stopped.sock"):
        rig.housekeeper.start()
        await rig.clock.advance(30)
        assert len(rig.peers.watched) > 2
        assert [record.message for record in caplog.records if record.name == housekeeping.__name__] == [
            "another instance doesn't answer, though its process is there; end it if that lasts"
        ]
        caplog.clear()
        rig.peers.end.clear()
        await rig.clock.advance(6)
    rig.peers.end.set()
    await rig.clock.settle()
    assert "another instance has ended" in [record.message for record in caplog.records]


async def test_a_socket_that_cant_be_removed_keeps_no_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, other = rig.dead("status-a.sock"), rig.dead("status-b.sock")
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == stuck:
            raise PermissionError(errno.EPERM, "not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    rig.housekeeper.start()
    await rig.clock.advance(6)
    assert stuck.exists()
    assert not other.exists()


async def test_a_look_that_fails_isnt_the_last(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dead = rig.dead("dra-gone.sock")

    def fail(path: Path) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(housekeeping, "answers", fail)
        rig.housekeeper.start()
        await rig.clock.advance(6)
    assert any(record.exc_info for record in caplog.records), "with its stack"
    await rig.clock.advance(10)
    assert not dead.exists()


async def test_a_watch_that_fails_is_begun_anew(rig: Rig) -> None:
    rig.peers.failure = RuntimeError("channel")
    with rig.living("dra-you.sock"):
        rig.housekeeper.start()
        await rig.clock.settle()
        assert len(rig.peers.watched) == 1
        await rig.clock.advance(5)
        assert len(rig.peers.watched) == 2
        await rig.clock.advance(20)
        assert len(rig.peers.watched) == 2, "one watch is enough"
        rig.peers.end.set()
        await rig.clock.advance(1)
    assert rig.resent == 2
