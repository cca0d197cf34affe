"""What a node may be given from: pools, gathered from ResourceSlices as the scheduler does it.

Only slices of a pool's highest generation count; a pool of which not all slices are there, or in which a device name
comes twice, gives nothing away. Order is policy, since allocation is first-fit: pools by name, slices by name, devices
as listed. Node selectors other than a node's name and "all nodes" are not evaluated: such slices are passed over.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that the node can reach; ``spec`` as in the slice."""

    driver: str
    pool: str
    name: str
    spec: Json
    node_local: bool

    @property
    def id(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.name


@dataclass(frozen=True, slots=True)
class Pool:
    """``problem`` says why nothing is given from this pool; then ``devices`` is empty."""

    driver: str
    name: str
    devices: tuple[Candidate, ...] = ()
    problem: str = ""


def gather_pools(slices: Iterable[Json], node_name: str) -> tuple[Pool, ...]:
    by_pool: dict[tuple[str, str], list[Json]] = {}
    for item in slices:
        spec = item["spec"]
        by_pool.setdefault((spec["pool"]["name"], spec["driver"]), []).append(item)
    pools = (_pool(driver, name, by_pool[name, driver], node_name) for name, driver in sorted(by_pool))
    return tuple(pool for pool in pools if pool is not None)


def _reaches(spec: Json, node_name: str) -> bool:
    return bool(spec.get("allNodes")) or spec.get("nodeName") == node_name


def _pool(driver: str, name: str, slices: list[Json], node_name: str) -> Pool | None:
    """None when the node reaches nothing of the pool."""
    reached = [item for item in slices if _reaches(item["spec"], node_name)]
    if not reached:
        return None
    generation = max(_generation(item) for item in reached)
    current = [item for item in reached if _generation(item) == generation]
    expected = current[0]["spec"]["pool"]["resourceSliceCount"]
    if len(current) != expected:
        # Perhaps the others are for other nodes, or the pool has just moved on to where this node isn't reached.
        if any(_generation(item) > generation for item in slices):
            return None
        found = sum(_generation(item) == generation for item in slices)
        if found != expected:
            problem = f"incomplete: {found} of {expected} slices of generation {generation}"
            return Pool(driver, name, problem=problem)
    devices = tuple(
        Candidate(driver, name, device["name"], device, not item["spec"].get("allNodes"))
        for item in sorted(current, key=lambda item: str(item["metadata"]["name"]))
        for device in item["spec"].get("devices", ())
    )
    seen: set[str] = set()
    for device in devices:
        if device.name in seen:
            return Pool(driver, name, problem=f"invalid: duplicate device name {device.name}")
        seen.add(device.name)
    return Pool(driver, name, devices)


def _generation(item: Json) -> int:
    return int(item["spec"]["pool"]["generation"])
