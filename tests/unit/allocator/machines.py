"""The slices of every machine that is shipped."""

from pathlib import Path
from typing import Any

from kubeletplugin.nvml.simulated.profile import machine_names
from kubeletplugin.slices.render import render_slices
from tests.unit.inventory.support import machine

STATIC_MIG = {"dgx-h100": ["0=1g.10gb,3g.40gb"], "a30x2": ["1=1g.6gb,1g.6gb,2g.12gb"]}


async def slices_of_all_machines(folder: Path) -> list[dict[str, Any]]:
    """One node per machine, named after it; two of them partitioned."""
    rendered: list[dict[str, Any]] = []
    for name in machine_names():
        (folder / name).mkdir()
        node = machine(folder / name, name, STATIC_MIG.get(name, []))
        inventory = await node.inventory()
        found = render_slices(inventory, name)
        assert found.problems == (), f"machine {name} has a device that isn't fit to publish"
        rendered += found.slices
        node.close()
    return rendered
