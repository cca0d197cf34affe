"""One scrape: the node as it is now, in the format that was asked for."""

from collections.abc import Awaitable, Callable

from prometheus_client.exposition import choose_encoder

from kubeletplugin.app.metrics.claim_info import FindPod
from kubeletplugin.app.metrics.collector import NodeCollector
from kubeletplugin.app.metrics.metrics import Metrics
from kubeletplugin.app.metrics.view import AgentView, LedgerView, LedgerViews
from kubeletplugin.clock import Clock


class Scraper:
    """Counters from the start, and from ``follow`` on what the agent knows. A scrape takes at most a second: see
    view."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._refresh: Callable[[], Awaitable[None]] | None = None

    def follow(
        self,
        agent: Callable[[], AgentView],
        read_ledger: Callable[[], Awaitable[LedgerView | None]],
        find_pod: FindPod,
    ) -> None:
        """To be called once. ``read_ledger`` answers None while this instance isn't active."""
        ledger = LedgerViews(read_ledger, self._clock)
        self._refresh = lambda: ledger.refresh(agent().epoch)
        self._metrics.add(NodeCollector(agent, ledger, find_pod, self._clock))

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """The exposition and its content type; ``accept`` is the HTTP header."""
        if self._refresh is not None:
            await self._refresh()
        encode, content_type = choose_encoder(accept)
        return encode(self._metrics.registry), content_type
