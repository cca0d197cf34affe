"""One scrape as it goes out: both formats, before the agent is put together, and while the ledger hangs."""

import asyncio

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kubeletplugin.app.metrics import view
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.scrape import Scraper
from kubeletplugin.app.metrics.view import AgentView, LedgerView
from kubeletplugin.inventory.model import Inventory
from tests.fakes.clock import VirtualClock
from tests.unit.app.metrics.exposition import Exposition

pytestmark = pytest.mark.anyio

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def agent() -> AgentView:
    seen = Inventory("580.1")
    return AgentView("agent-1", "node-a", True, True, 1, True, seen, seen, 0, 0)


async def hangs() -> LedgerView | None:
    await asyncio.Event().wait()
    return None


def following(metrics: Metrics) -> Scraper:
    scraper = Scraper(metrics, VirtualClock())
    scraper.follow(agent, hangs, lambda uid: None)
    return scraper


async def test_counters_are_there_before_the_agent_is() -> None:
    body, content_type = await Scraper(Metrics(), VirtualClock()).scrape("")
    assert content_type.startswith("text/plain")
    assert Exposition(body.decode()).value("nvidia_dra_requests_total", operation="prepare") == 0


async def test_a_ledger_that_hangs_costs_its_own_series_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PATIENCE_SECONDS", 0.01)
    body, _ = await following(Metrics()).scrape("")
    seen = Exposition(body.decode())
    assert seen.value("gpuclaim_agent_active") == 1
    assert seen.value("gpuclaim_driver_info", driver_version="580.1") == 1
    assert "gpuclaim_devices" not in seen.names()


async def test_open_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PATIENCE_SECONDS", 0.01)
    body, content_type = await following(Metrics()).scrape(OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text")
    families = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"gpuclaim_agent_active", "gpuclaim_events_written", "gpuclaim_claim_duration_seconds"} <= names
