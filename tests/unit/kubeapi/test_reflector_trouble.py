"""The reflector in trouble: how it backs off, and what the log says."""

import pytest

from kubeapi.errors import Forbidden, Gone, TooManyRequests, Unreachable
from tests.unit.kubeapi.reflecting import Rig

pytestmark = pytest.mark.anyio


async def test_back_off_grows_with_jitter_and_starts_anew_after_an_event() -> None:
    rig = Rig()
    rig.api.list_errors = [Unreachable("down")] * 6
    delays: list[float] = []
    async with rig.running():
        for _ in range(6):
            due = rig.clock.next_due
            assert due is not None
            delays.append(due)
            await rig.clock.advance(due)
        assert rig.reflector.synced.is_set()
        assert rig.reflector.stats.last_error == ""
        for nominal, delay in zip((0.2, 0.4, 0.8, 1.6, 3.2, 6.4), delays, strict=True):
            assert nominal / 2 <= delay <= nominal
        rig.api.put("a")
        await rig.clock.settle()
        rig.api.end_watches(Unreachable("down"))
        await rig.clock.settle()
        assert rig.clock.next_due is not None
        assert rig.clock.next_due <= 0.2


async def test_retry_after_is_heeded() -> None:
    rig = Rig()
    rig.api.list_errors = [TooManyRequests(429, "TooManyRequests", "slow down", retry_after=17)]
    async with rig.running():
        await rig.clock.advance(16.9)
        assert not rig.reflector.synced.is_set()
        await rig.clock.advance(0.1)
        assert rig.reflector.synced.is_set()


async def test_a_server_that_ends_every_watch_at_once_is_not_called_in_a_loop() -> None:
    rig = Rig()
    async with rig.running():
        for _ in range(200):
            rig.api.end_watches()
            await rig.clock.advance(0.1)
        assert rig.reflector.stats.watches < 20
        assert "ended the watch at once" in rig.reflector.stats.last_error


def told_lines(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == level]


async def test_a_server_that_is_away_is_told_once_per_cause_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    rig.api.list_errors = [Unreachable("refused"), Unreachable("no answer")] * 5
    async with rig.running():
        await rig.clock.advance(300)
        assert rig.reflector.stats.errors == 10
        first, second = told_lines(caplog, "WARNING")
        assert first.startswith("list and watch resourceslices: refused; again in ")
        assert second.startswith("list and watch resourceslices: no answer; again in ")
        assert told_lines(caplog, "INFO").count("list and watch resourceslices: works again") == 1
        caplog.clear()
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(1)
        assert len(told_lines(caplog, "WARNING")) == 1, "a new trouble"


async def test_a_watch_that_is_forbidden_while_the_list_is_not_is_told_once_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    rig.api.watch_errors = [Forbidden(403, "Forbidden", "may not watch")] * 20
    async with rig.running():
        await rig.clock.advance(100)
        assert rig.reflector.stats.errors > 5
        (line,) = told_lines(caplog, "WARNING")
        assert "may not watch (403 Forbidden); apply deploy/manifests, and check the ClusterRole" in line
        assert told_lines(caplog, "INFO") == []
        rig.api.watch_errors = []
        await rig.clock.advance(60)
        rig.api.put("a")
        await rig.clock.settle()
        assert told_lines(caplog, "INFO") == ["list and watch resourceslices: works again"]


async def test_a_watch_that_went_on_after_a_failure_heals_without_an_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    async with rig.running():
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(50)
        assert "works again" not in caplog.text
        rig.api.end_watches()
        await rig.clock.settle()
        assert told_lines(caplog, "INFO") == ["list and watch resourceslices: works again"]


async def test_silence_is_no_sign_of_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig(silence=100)
    async with rig.running():
        rig.api.end_watches(Unreachable("refused"))
        await rig.clock.advance(102)
        assert rig.reflector.stats.silent_watches == 1
        assert "works again" not in caplog.text


async def test_a_version_that_is_too_old_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    async with rig.running():
        rig.api.end_watches(Gone(410, "Expired", "too old"))
        await rig.clock.advance(1)
    assert told_lines(caplog, "WARNING") == []
