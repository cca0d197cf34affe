"""One look at the hardware without an agent: `gpuclaim inventory` and `gpuclaim slices`."""

from kubeletplugin.app.host.hardware import Hardware
from kubeletplugin.app.settings import Settings
from kubeletplugin.clock import SystemClock
from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.inventory.probe import InventoryProber
from kubeletplugin.inventory.session import NvmlSession
from kubeletplugin.inventory.watcher import explain
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.worker import NvmlWorkers

_AGAIN = "; trying again"
"""True of the agent only."""


async def look(settings: Settings, hardware: Hardware) -> Inventory:
    """What the agent would see now, under plain names. RecoverableError when the driver doesn't answer."""
    workers = NvmlWorkers(settings.nvml_timeout)
    session = NvmlSession(hardware.nvml, workers, SystemClock())
    prober = InventoryProber(hardware.nvml, workers, hardware.around, node_name=settings.node_name)
    try:
        await session.ensure()
        found = await prober.look([Exclusion(entry.gpu, entry.reason) for entry in settings.exclude])
        return found.inventory
    except NvmlError as error:
        raise RecoverableError(f"look at the GPUs: {explain(error).removesuffix(_AGAIN)}") from error
    finally:
        await session.end()
        workers.close()
