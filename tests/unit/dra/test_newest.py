"""When the active instance makes itself the newest: only for a younger one that hangs, and once, on a virtual clock."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kubeletplugin.dra.instance import PeerError
from kubeletplugin.dra.newest import NewestKeeper, NewestTiming
from kubeletplugin.dra.sockets import SocketPaths, choose_paths
from tests.fakes.clock import VirtualClock
from tests.unit.dra.takeovers import Peers
from tests.unit.dra.test_sockets import DRIVER, bind

pytestmark = pytest.mark.anyio


class Answering(Peers):
    """Those in ``hanging`` give no sign of life; the answer takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging: set[str] = set()
        self.asked = []
        self.successors: list[str] = []
        self.refusing: dict[str, bool | PeerError] = {}

    async def responds(self, socket: str, timeout: float) -> bool:
        self.asked.append(socket)
        return socket not in self.hanging

    async def register_anew(self, socket: str, timeout: float) -> bool:
        self.successors.append(Path(socket).stem)
        answer = self.refusing.get(socket, True)
        if isinstance(answer, PeerError):
            raise answer
        return answer


class Rig:
    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.plugin, self.registry = folder / "p", folder / "r"
        self.plugin.mkdir()
        self.registry.mkdir()
        self._stack = stack
        self.clock, self.peers = VirtualClock(), Answering()
        self.renewals = 0
        self.paths = self.instance("me", age=100)
        self.keeper = NewestKeeper(
            DRIVER,
            self.paths,
            self.peers,
            self._renew,
            clock=self.clock,
            timing=NewestTiming(look=2.0, answer=2.0, misses=3),
        )

    def instance(self, name: str, *, age: int) -> SocketPaths:
        paths = choose_paths(self.registry, self.plugin, DRIVER, name)
        for path in (paths.registration, paths.dra):
            self._stack.enter_context(bind(path, listen=True))
            os.utime(path, ns=(0, (1000 - age) * 10**9))
        return paths

    async def _renew(self) -> None:
        self.renewals += 1


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(short_path, stack)
        yield rig
        rig.keeper.stop()
        await rig.clock.settle()


async def test_a_younger_one_that_gives_no_sign_of_life_is_outranked_once(rig: Rig) -> None:
    younger = rig.instance("new", age=50)
    rig.peers.hanging.add(str(younger.dra))
    rig.keeper.start()
    await rig.clock.advance(3)
    assert rig.renewals == 0, "two looks"
    await rig.clock.advance(2)
    assert rig.renewals == 1
    await rig.clock.advance(60)
    assert rig.renewals == 1, "though the test's socket is still the older one"


async def test_one_that_misses_now_and_then_is_left_alone(rig: Rig) -> None:
    younger = str(rig.instance("new", age=50).dra)
    rig.keeper.start()
    for _ in range(10):
        rig.peers.hanging.add(younger)
        await rig.clock.advance(3)
        rig.peers.hanging.clear()
        await rig.clock.advance(3)
    assert len(rig.peers.asked) > 20
    assert rig.renewals == 0


async def test_an_older_one_isnt_even_asked(rig: Rig) -> None:
    older = rig.instance("old", age=200)
    rig.peers.hanging.add(str(older.dra))
    rig.keeper.start(str(older.dra))
    await rig.clock.advance(60)
    assert (rig.peers.asked, rig.renewals) == ([], 0)


async def test_one_whose_heartbeat_stood_still_is_outranked_at_once_and_unasked(rig: Rig) -> None:
    younger = rig.instance("new", age=50)
    rig.keeper.start(str(younger.dra))
    await rig.clock.settle()
    assert (rig.peers.asked, rig.renewals) == ([], 1)


async def test_a_dead_one_is_no_reason(rig: Rig) -> None:
    """The kubelet notices the end of a connection by itself."""
    paths = choose_paths(rig.registry, rig.plugin, DRIVER, "dead")
    for path in (paths.registration, paths.dra):
        bind(path, listen=False).close()
    rig.peers.hanging.add(str(paths.dra))
    rig.keeper.start(str(paths.dra))
    await rig.clock.advance(60)
    assert rig.renewals == 0


async def test_one_that_registered_anew_and_hangs_again_is_outranked_again(rig: Rig) -> None:
    younger = rig.instance("new", age=50)
    rig.peers.hanging.add(str(younger.dra))
    rig.keeper.start()
    await rig.clock.advance(10)
    assert rig.renewals == 1
    os.utime(younger.registration, ns=(0, 990 * 10**9))
    await rig.clock.advance(10)
    assert rig.renewals == 2


async def test_a_look_that_fails_isnt_the_last(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    younger = rig.instance("new", age=50)

    def fail(path: Path) -> bool:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("kubeletplugin.dra.newest.answers", fail)
        rig.keeper.start(str(younger.dra))
        await rig.clock.advance(3)
    assert any(record.exc_info for record in caplog.records)
    await rig.clock.advance(3)
    assert rig.renewals == 1, "what was known to hang isn't forgotten"


async def test_it_looks_only_from_start_to_stop(rig: Rig) -> None:
    younger = rig.instance("new", age=50)
    rig.peers.hanging.add(str(younger.dra))
    rig.keeper.start()
    await rig.clock.advance(1)
    rig.keeper.stop()
    await asyncio.sleep(0)
    await rig.clock.advance(20)
    assert (len(rig.peers.asked), rig.renewals) == (1, 0)


async def hand_over(rig: Rig) -> list[str]:
    ending = asyncio.create_task(rig.keeper.hand_over())
    await rig.clock.advance(1)
    assert ending.done()
    await ending
    return rig.peers.successors


async def test_the_newest_one_that_ends_has_the_next_newest_take_its_place(rig: Rig) -> None:
    rig.instance("oldest", age=300)
    rig.instance("old", age=200)
    assert await hand_over(rig) == ["dra-old"]


async def test_one_that_isnt_called_anyway_just_ends(rig: Rig) -> None:
    rig.instance("old", age=200)
    rig.instance("new", age=50)
    assert await hand_over(rig) == []


async def test_one_that_is_alone_just_ends(rig: Rig) -> None:
    dead = choose_paths(rig.registry, rig.plugin, DRIVER, "dead")
    for path in (dead.registration, dead.dra):
        bind(path, listen=False).close()
    assert await hand_over(rig) == []


@pytest.mark.parametrize("refusal", [False, PeerError("call the instance: UNIMPLEMENTED")])
async def test_where_one_cant_another_is_asked(rig: Rig, refusal: bool | PeerError) -> None:
    """It ends itself, hangs, or is of a release that doesn't know how."""
    rig.instance("oldest", age=300)
    rig.peers.refusing[str(rig.instance("old", age=200).dra)] = refusal
    assert await hand_over(rig) == ["dra-old", "dra-oldest"]


@pytest.mark.parametrize("length", [10, 40, 58, 63])
def test_an_instances_registration_is_found_whatever_its_name_was_cut_to(short_path: Path, length: int) -> None:
    from kubeletplugin.dra.sockets import registration_of

    root = short_path / ("r" * (length - len(str(short_path)) - 1)) if length > len(str(short_path)) else short_path
    registry, plugin = root / "plugins_registry", root / "plugins" / DRIVER
    registry.mkdir(parents=True)
    plugin.mkdir(parents=True)
    paths = choose_paths(registry, plugin, DRIVER, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
    assert registration_of(registry, DRIVER, paths.dra) is None
    with bind(paths.registration, listen=True) as listener:
        assert isinstance(listener, socket.socket)
        assert registration_of(registry, DRIVER, paths.dra) == paths.registration
