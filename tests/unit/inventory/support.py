"""A simulated node to look at, with workers that answer at once and bindings that live in memory."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple

from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Device, Inventory
from kubeletplugin.inventory.probe import InventoryProber, Look
from kubeletplugin.inventory.simulated import simulated_surroundings
from kubeletplugin.nvml.errors import NvmlTimeoutError
from kubeletplugin.nvml.simulated import SimulatedNode, SimulatedNvml, open_node, parse_mig_flag

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(slots=True)
class InlineWorkers:
    """Calls run at once on the event loop; those with a key in ``hung`` time out.
    ``busy`` says that some other call is inside NVML."""

    hung: set[str] = field(default_factory=set)
    busy: bool = False

    async def call(self, key: str, fn: Callable[[*Ts], T], *args: *Ts, timeout: float | None = None) -> T:
        if key in self.hung:
            raise NvmlTimeoutError(fn.__name__, timeout or 5.0)
        return fn(*args)


class Busy(Protocol):
    @property
    def busy(self) -> bool: ...


async def until_idle(workers: Busy) -> None:
    """Until no call is inside NVML."""

    def wait() -> None:
        while workers.busy:
            time.sleep(0.001)

    await asyncio.to_thread(wait)


@dataclass(slots=True)
class Bindings:
    """NameBindings in memory that keep the Protocol's promise."""

    bound: dict[str, str] = field(default_factory=dict)
    referenced: set[str] = field(default_factory=set)
    writes: int = 0

    async def bindings(self) -> Mapping[str, str]:
        return dict(self.bound)

    async def referenced_names(self) -> frozenset[str]:
        return frozenset(self.referenced)

    async def set_bindings(self, bindings: Mapping[str, str]) -> None:
        for name in self.referenced & self.bound.keys():
            if bindings.get(name) != self.bound[name]:
                raise ValueError(f"{name} is referenced and can't move")
        self.bound = dict(bindings)
        self.writes += 1


@dataclass(slots=True)
class Machine:
    """A simulated node with its tree and an initialised NVML."""

    node: SimulatedNode
    nvml: SimulatedNvml
    tree: Path
    workers: Any = field(default_factory=InlineWorkers)

    def close(self) -> None:
        """Ends the session that a look without a service needs."""
        self.nvml.shutdown()

    def prober(self) -> InventoryProber:
        return InventoryProber(
            self.nvml, self.workers, simulated_surroundings(self.node.profile, self.tree), node_name="node-a"
        )

    async def look(self, exclusions: Sequence[Exclusion] = ()) -> Look:
        return await self.prober().look(exclusions)

    async def inventory(self, exclusions: Sequence[Exclusion] = ()) -> Inventory:
        return (await self.look(exclusions)).inventory

    def uuid(self, slot: int) -> str:
        return self.node.state().gpus[slot].uuid


def machine(folder: Path, name: str = "dgx-h100", mig: Sequence[str] = ()) -> Machine:
    node = open_node(name, folder / "state.json", parse_mig_flag(list(mig)) if mig else None)
    node.materialise(folder / "tree")
    nvml = node.nvml()
    nvml.init()
    return Machine(node, nvml, folder / "tree")


def published(device: Device) -> dict[str, object]:
    """A device as a ResourceSlice shows it."""
    return {
        "name": device.name,
        "attributes": {key: {attribute.kind: attribute.value} for key, attribute in device.attributes.items()},
        "capacity": {key: {"value": value} for key, value in device.capacity.items()},
    }
