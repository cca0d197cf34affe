"""The slices as a person sees them: `gpuclaim slices`, fit for `kubectl create -f -` and `kubectl apply -f -`."""

from dataclasses import dataclass

from deviceclasses.names import DRIVER_NAME
from kubeapi.client import Json
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.slices.pool import PoolContent, Publisher, cut_pool, device_json, named_slice
from kubeletplugin.slices.validate import Problem, check_devices, pool_name_problem


@dataclass(frozen=True, slots=True)
class RenderedSlices:
    """``problems`` say what of the inventory's devices isn't in ``slices``; GPUs that the inventory withholds itself
    aren't among them."""

    slices: tuple[Json, ...]
    problems: tuple[Problem, ...]


def render_slices(inventory: Inventory, node_name: str, driver: str = DRIVER_NAME) -> RenderedSlices:
    """What would be published for ``node_name``, with fixed names and without an owner (its UID isn't known here).

    Raises ValueError when no node can have that name.
    """
    problem = pool_name_problem(node_name)
    if problem:
        raise ValueError(f"render slices for node {node_name!r}: {problem}")
    checked = check_devices(device_json(device) for device in inventory.devices)
    pool = cut_pool(node_name, PoolContent(checked.devices))
    publisher = Publisher(driver, node_name)
    slices = tuple(named_slice(publisher, pool, index) for index in range(len(pool.slices)))
    return RenderedSlices(slices, checked.problems)
