"""A scrape waits for the ledger for a moment, never for ever, and shows what it knows."""

import asyncio

import pytest

from kubeletplugin.app.metrics import view
from kubeletplugin.app.metrics.view import LedgerView, LedgerViews
from kubeletplugin.errors import NotActiveError
from kubeletplugin.ledger.errors import LedgerBusyError
from kubeletplugin.ledger.model import Snapshot
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Ledger:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.free = asyncio.Event()
        self.free.set()
        self.size = 1
        self.reads = 0
        self.error: Exception | None = None
        self.views = LedgerViews(self.read, self.clock)

    async def read(self) -> LedgerView:
        self.reads += 1
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return LedgerView(Snapshot("boot"), self.size, 0)

    @property
    def seen(self) -> int | None:
        return self.views.view.size_bytes if self.views.view else None


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setattr(view, "PATIENCE_SECONDS", 0.01)
    return Ledger()


async def test_each_scrape_reads_anew(ledger: Ledger) -> None:
    for ledger.size in (1, 2):
        await ledger.views.refresh(1)
        assert ledger.seen == ledger.size
    assert ledger.views.age == 0


async def test_a_busy_ledger_costs_a_moment_and_is_asked_once(ledger: Ledger) -> None:
    await ledger.views.refresh(1)
    ledger.free.clear()
    ledger.size = 2
    await ledger.clock.advance(15.0)
    for _ in range(3):
        await ledger.views.refresh(1)
    assert (ledger.seen, ledger.reads, ledger.views.age) == (1, 2, 15.0)
    ledger.free.set()
    await ledger.clock.settle()
    assert (ledger.seen, ledger.reads) == (2, 2)
    ledger.size = 3
    await ledger.views.refresh(1)
    assert ledger.seen == 3


@pytest.mark.parametrize("error", [LedgerBusyError("busy"), NotActiveError("lost"), RuntimeError("odd")])
async def test_what_cant_be_read_is_shown_as_it_was(ledger: Ledger, error: Exception) -> None:
    await ledger.views.refresh(1)
    ledger.error = error
    await ledger.views.refresh(1)
    assert (ledger.seen, ledger.reads) == (1, 2)


async def test_what_was_seen_in_another_epoch_is_nobodys(ledger: Ledger) -> None:
    await ledger.views.refresh(1)
    await ledger.views.refresh(None)
    assert (ledger.seen, ledger.reads) == (None, 1)
    ledger.free.clear()
    await ledger.views.refresh(2)
    assert not ledger.views.view
    ledger.free.set()
    await ledger.views.refresh(3)  # what the epoch before still waits for is given up
    assert (ledger.seen, ledger.reads) == (1, 3)
