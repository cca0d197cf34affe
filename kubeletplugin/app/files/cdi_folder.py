"""The folder of CDI files: the driver's file kept true, and what others put there that harms pods."""

import asyncio
from pathlib import Path

from kubeletplugin.app.files.cdi_specs import HostSpecs
from kubeletplugin.app.tell.notices import NodeNotices
from kubeletplugin.cdi.strangers import Strangers
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.watcher import InventoryService
from kubeletplugin.troubles import Troubles

STATIC_FOLDER = Path("etc/cdi")
"""The other folder that runtimes read by default, on the host."""

KEEP = "keep the driver's CDI file"


class CdiFolder:
    def __init__(
        self, specs: HostSpecs, folder: Path, host_root: Path, notices: NodeNotices, troubles: Troubles
    ) -> None:
        self._specs = specs
        self._strangers = Strangers(folder, [host_root / STATIC_FOLDER])
        self._notices = notices
        self._troubles = troubles
        self.problems: tuple[str, ...] = ()
        """What others' files do, as of the last look."""

    async def run(self, inventory: InventoryService) -> None:
        """After each look at the hardware."""
        async for look in inventory.looks():
            if look.answered:
                await self.refresh(look.driver_version)
            await self._look()

    async def refresh(self, driver_version: str) -> None:
        """A folder that can't be written now is told of, and tried again with the next look; a claim that needs it says
        so itself."""
        try:
            await asyncio.to_thread(self._specs.refresh, driver_version)
        except RecoverableError as error:
            self._troubles.failed(KEEP, error)
        else:
            self._troubles.over(KEEP)

    async def _look(self) -> None:
        try:
            self.problems = await asyncio.to_thread(lambda: self._strangers.look(self._specs.claim_uids()))
        except RecoverableError:
            return  # of a folder that can't be listed; ``refresh`` tells
        self._notices.foreign_cdi_files(self.problems)
