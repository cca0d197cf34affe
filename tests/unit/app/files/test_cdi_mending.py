"""Files are put back as often as somebody takes them away; people are told in ever longer steps."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import pytest

from kubeletplugin.app.files.cdi_mending import MOST_SILENT_SECONDS, SILENT_SECONDS, SpecKeeper
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio


class Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.clock = path, VirtualClock()
        self.mended = 0
        self.told: list[float] = []
        self._keeper = SpecKeeper(path, "k8s.gpu.nvidia.com-", self, self._mend, cast("Any", self), self.clock)

    def restore(self) -> bool:
        return False

    async def _mend(self, uids: Collection[str] | None) -> int:
        self.mended += 1
        return 1

    def files_restored(self, folder: Path, driver: bool, claims: int) -> None:
        self.told.append(self.clock.monotonic() - 1000.0)

    async def emptied(self, seconds: float) -> None:
        """At this moment, that long after the last time."""
        await self.clock.advance(seconds)
        await self._keeper._mend(None)


async def test_who_empties_the_folder_in_a_loop_is_told_of_ever_more_rarely(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for _ in range(1000):
        await asyncio.sleep(0)
        await folder.emptied(1)
    assert folder.mended == 1000
    assert folder.told == [
        1,
        1 + SILENT_SECONDS,
        1 + 3 * SILENT_SECONDS,
        1 + 7 * SILENT_SECONDS,
        1 + 15 * SILENT_SECONDS,
    ]
    await folder.emptied(3 * MOST_SILENT_SECONDS)
    await folder.emptied(SILENT_SECONDS)
    assert len(folder.told) == 7, "what comes again after a long time is news"
