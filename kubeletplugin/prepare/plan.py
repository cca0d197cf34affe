"""From an allocation to devices of this node: what to hold, what to write, what to answer.

Pure over the inventory. What can't be prepared is told apart by whether it may clear up: Unready is waited for,
ClaimError is refused at once.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from deviceclasses.configs import ConfigError
from deviceclasses.resolve import resolve_configs
from kubeletplugin.cdi.api import ClaimSpecs
from kubeletplugin.errors import ClaimError
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.allocation import Allocation, Result


class Unready(Exception):
    """Can't be prepared now, may be later; the text says what is missing, for the pod's owner."""


class UnknownDevice(Exception):
    """The inventory has no device of this name; ``explain_unknown`` tells what that means."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class PlannedDevice:
    """``cdi_name`` is a pure function of claim and device, so two results of one device share it."""

    result: Result
    device: Device
    cdi_name: str


@dataclass(frozen=True, slots=True)
class Plan:
    """In the order of the allocation's results, which is the order of the answer."""

    devices: tuple[PlannedDevice, ...]

    def holds(self) -> tuple[HeldDevice, ...]:
        return tuple(dict.fromkeys(_held(planned) for planned in self.devices))

    def gpus(self) -> frozenset[str]:
        return frozenset(planned.device.gpu_uuid for planned in self.devices)


def make_plan(
    allocation: Allocation, inventory: Inventory, specs: ClaimSpecs, pool_name: str, own: Collection[str] = ()
) -> Plan:
    """``own`` are UUIDs of devices that the claim holds already: it keeps one with a problem, which nobody new gets.
    Raises UnknownDevice, Unready, ClaimError."""
    located = {}
    for result in allocation.results:
        if result.pool != pool_name:
            raise ClaimError(f"device {result.device} is of pool {result.pool}, this node's is {pool_name}")
        device = inventory.by_name(result.device)
        if device is None:
            raise UnknownDevice(result.device)
        if device.problem and device.uuid not in own:
            raise Unready(f"device {device.name} ({device.uuid}) can't be given to a new claim: {device.problem}")
        located[result.device] = device
    _check_configs(allocation, located)
    return Plan(
        tuple(
            PlannedDevice(
                result, located[result.device], specs.cdi_name(allocation.uid, result.device, result.share_id)
            )
            for result in allocation.results
        )
    )


def explain_unknown(name: str, inventory: Inventory, bindings: Mapping[str, str]) -> Unready | ClaimError:
    """What to do about a device that isn't in the inventory; ``bindings`` are the ledger's device names."""
    if not inventory.driver_version:
        return Unready(f"device {name} isn't there yet: the NVIDIA driver doesn't answer")
    uuid = bindings.get(name, "")
    if uuid in inventory.lost:
        return ClaimError(f"device {name} ({uuid}) is lost: the GPU has fallen off the bus or been taken away")
    for gpu in inventory.withheld:
        if gpu.uuid and gpu.uuid == uuid:
            if gpu.excluded:
                return ClaimError(f"device {name} ({uuid}) is excluded on this node: {gpu.reason}")
            return Unready(f"device {name} isn't there: GPU {gpu.index} is withheld: {gpu.reason}")
    # Without its UUID, or the name's, a GPU may be the one, unless it is known by another name.
    named = {device.gpu_uuid for device in inventory.devices} | set(bindings.values())
    for gpu in inventory.withheld:
        if not gpu.uuid or (not uuid and gpu.uuid not in named):
            return Unready(f"device {name} isn't there; it may be of GPU {gpu.index}, which is withheld: {gpu.reason}")
    if uuid:
        return Unready(f"device {name} ({uuid}) isn't there any more")
    return ClaimError(f"device {name} doesn't exist on this node")


def _check_configs(allocation: Allocation, devices: Mapping[str, Device]) -> None:
    try:
        resolved = resolve_configs(allocation.raw, lambda _pool, name: devices[name].kind.value)
    except ConfigError as error:
        raise ClaimError(str(error)) from error
    for config in resolved:
        effects = ", ".join(config.config.requested_effects())
        if effects:
            raise ClaimError(
                f"device {config.device}: {effects} is asked for by {config.source} and isn't supported by this "
                "version of the driver; remove it from the config"
            )


def _held(planned: PlannedDevice) -> HeldDevice:
    device = planned.device
    return HeldDevice(
        name=device.name,
        uuid=device.uuid,
        gpu_uuid=device.gpu_uuid,
        whole_gpu=device.kind is DeviceKind.GPU,
        share_id=planned.result.share_id or "",
        admin=planned.result.admin,
    )
