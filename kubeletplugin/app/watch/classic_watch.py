"""When to look at what other device plugins have given out (see kubeletplugin.classic.judge).

The kubelet's device checkpoint is read at every change, at once. pod-resources, which only removes doubt and of which
the kubelet refuses more than ten calls at a burst, is asked for every half a minute, soon after a change, and soon
again while something is in doubt.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from kubeletplugin.app.files.file_watch import FileWatch
from kubeletplugin.classic.ended import Pods, uids
from kubeletplugin.classic.judge import ClassicJudge
from kubeletplugin.classic.pod_resources import PodDevices
from kubeletplugin.clock import Clock
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.supervision import together

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
SOON_SECONDS = 2.0
"""Longer than the moment for which pod-resources is empty after a kubelet's start."""


class ClassicWatch:
    """``settled`` is set once no hold is about to end, so that what is offered then needn't be changed at once.
    ``looked`` is set after each look; whoever waits for it clears it."""

    def __init__(
        self,
        judge: ClassicJudge,
        checkpoint: Path,
        pods: Pods,
        clock: Clock,
        claim_pods: Callable[[str, frozenset[str]], None],
    ) -> None:
        """``claim_pods`` is told which pods (UIDs) have a claim of ours; it must return at once."""
        self._judge = judge
        self._checkpoint = checkpoint
        self._pods = pods
        self._clock = clock
        self._claim_pods = claim_pods
        self.settled = asyncio.Event()
        self.looked = asyncio.Event()

    async def run(self) -> None:
        """For ever."""
        watch = FileWatch(self._checkpoint)
        await together(self._watch(watch), self._read(watch), self._look())

    async def _watch(self, watch: FileWatch) -> None:
        while not self._checkpoint.parent.is_dir():
            await self._clock.sleep(LOOK_SECONDS)
        await watch.run()

    async def _read(self, watch: FileWatch) -> None:
        while True:
            await watch.changed.wait()
            watch.changed.clear()
            await self._judge.read()

    async def _look(self) -> None:
        judge = self._judge
        said = ""
        while True:
            self._tell_claims(await judge.look())
            if judge.blind not in ("", said):
                log.warning("look for devices that others hand out: %s", judge.blind)
            said = judge.blind
            if judge.settled:
                self.settled.set()
            self.looked.set()
            await self._clock.sleep(SOON_SECONDS)
            if judge.settled and not judge.blind:
                rewritten = asyncio.ensure_future(judge.rewritten.wait())
                await wait_for_any(self._clock, rewritten, LOOK_SECONDS - SOON_SECONDS, cancel=True)

    def _tell_claims(self, listed: PodDevices) -> None:
        known = uids(self._pods) if listed.claims else {}
        for claim, pods in listed.claims.items():
            if found := frozenset(known[pod] for pod in pods if pod in known):
                self._claim_pods(claim, found)
