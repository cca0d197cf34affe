"""When the registration socket is made anew and when it is left alone, on a virtual clock."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeletplugin.dra.registrar import Registrar, RegistrarTiming
from kubeletplugin.dra.sockets import bound_at, choose_paths
from tests.fakes.clock import VirtualClock
from tests.unit.dra.test_sockets import DRIVER

pytestmark = pytest.mark.anyio


class Rig:
    def __init__(self, folder: Path) -> None:
        registry, plugin = folder / "r", folder / "p"
        registry.mkdir()
        plugin.mkdir()
        self.clock = VirtualClock()
        self.paths = choose_paths(registry, plugin, DRIVER, "me")
        self.heard: list[str] = []
        timing = RegistrarTiming(look=1.0, first_retry=5.0)
        self.registrar = Registrar(DRIVER, self.paths, self, clock=self.clock, timing=timing)
        self.publications = 0
        self._publish = self.registrar._publish
        self.registrar._publish = self._counted  # type: ignore[method-assign]

    async def _counted(self) -> None:
        await self._publish()
        self.publications += 1

    async def pass_time(self, seconds: int) -> None:
        """Real work (a server that starts or stops) is waited for between the seconds."""
        for _ in range(seconds):
            await self.clock.advance(1)
            await asyncio.sleep(0.001)

    async def published(self, times: int) -> None:
        while self.publications < times:  # noqa: ASYNC110 - what it does is done by the product itself
            await asyncio.sleep(0.001)

    # --- RegistrationListener ---
    def on_registered(self) -> None:
        self.heard.append("registered")

    def on_refused(self, error: str) -> None:
        self.heard.append(f"refused: {error}")

    def on_unpublished(self) -> None:
        self.heard.append("unpublished")


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(short_path)
    await rig.registrar.start()
    yield rig
    await rig.registrar.stop()


async def test_a_refusal_is_answered_by_a_new_socket(rig: Rig) -> None:
    rig.registrar._told(False, "not ready")
    await rig.pass_time(3)
    assert rig.publications == 1
    await rig.pass_time(6)
    await rig.published(2)
    assert rig.heard == ["refused: not ready"]


async def test_one_that_is_confirmed_after_a_refusal_is_left_alone(rig: Rig) -> None:
    """A restarted kubelet asks all sockets again; a new one would break off the calls that it has open here."""
    rig.registrar._told(False, "not ready")
    await rig.pass_time(3)
    rig.registrar._told(True, "")
    await rig.pass_time(20)
    assert rig.publications == 1
    assert rig.heard == ["refused: not ready", "registered"]


async def test_a_confirmation_of_the_old_socket_isnt_the_renewals(rig: Rig) -> None:
    renewing = asyncio.create_task(rig.registrar.renew())
    await rig.clock.settle()
    rig.registrar._told(True, "")
    await rig.clock.settle()
    assert not renewing.done()
    await rig.pass_time(2)
    await rig.published(2)
    rig.registrar._told(True, "")
    await renewing


async def test_a_socket_says_when_it_was_bound_whatever_the_wall_clock_does(short_path: Path) -> None:
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    rig = Rig(short_path)
    await rig.registrar.start()
    bound = bound_at(rig.paths.registration)
    await rig.registrar.stop()
    assert bound is not None
    assert before <= bound <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert bound_at(rig.paths.registration) is None
