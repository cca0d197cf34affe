"""One scrape: the node as it is now, in the format that was asked for."""

from collections.abc import Awaitable, Callable

from prometheus_client.exposition import choose_encoder

from kubeletplugin.app.metrics.claim_info import FindPod
from kubeletplugin.app.metrics.collector import NodeCollector
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.view import AgentView, LedgerView, LedgerViews
from kubeletplugin.clock import Clock


class Scraper:
    """Takes at most a second: see view."""

    def __init__(
        self,
        metrics: Metrics,
        agent: Callable[[], AgentView],
        ledger: Callable[[], Awaitable[LedgerView | None]],
        find_pod: FindPod,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._agent = agent
        self._ledger = LedgerViews(ledger, clock)
        metrics.add(NodeCollector(agent, self._ledger, find_pod, clock))

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type; ``accept`` is the HTTP header."""
        await self._ledger.refresh(self._agent().epoch)
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type
