"""Fields that an API server silently drops while their feature gate is off, as older servers do with newer fields.

Like the real one, a field that the stored object already has may be kept on an update.
"""

from collections.abc import Iterator, Mapping

from gpuclaim.demo.apiserver_errors import Json

DEFAULT_GATES: Mapping[str, bool] = {
    "DRAConsumableCapacity": True,
    "DRADeviceBindingConditions": True,
    "DRADeviceTaints": True,
    "DRAExtendedResource": True,
    "DRAPartitionableDevices": True,
    "DRAResourceClaimDeviceStatus": True,
    "DRAListTypeAttributes": False,
    "DRANodeAllocatableResources": False,
    "DRAPartitionableDevicesType": False,
    "DRAOptionalNodeOperations": False,
    "DRADeviceCompatibilityGroups": False,
}
"""As in Kubernetes 1.36; the last three are 1.37's, off there too."""

_SPEC_FIELDS = {
    "DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection"),
    "DRAPartitionableDevicesType": ("partitionTypeAttribute",),
    "DRAOptionalNodeOperations": ("skipNodeOperations",),
}
_CLAIM_STATUS_FIELDS = {"DRAResourceClaimDeviceStatus": ("devices",)}
_DEVICE_FIELDS = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceBindingConditions": ("bindingConditions", "bindingFailureConditions", "bindsToNode"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRANodeAllocatableResources": ("nodeAllocatableResourceMappings", "nodeAllocatableResources"),
}
_NESTED_FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "DRAListTypeAttributes": {"attributes": ("bools", "ints", "strings", "versions")},
    "DRAConsumableCapacity": {"capacity": ("requestPolicy",)},
    "DRADeviceCompatibilityGroups": {"consumesCounters": ("compatibilityGroups",)},
}


def drop_disabled(body: Json, old: Json | None, gates: Mapping[str, bool]) -> None:
    """Changes ``body`` (a ResourceSlice, DeviceClass or ResourceClaim) in place."""
    for gate, enabled in gates.items():
        if enabled or (old is not None and any(True for _ in _places(gate, old))):
            continue
        for holder, field in tuple(_places(gate, body)):
            del holder[field]


def _places(gate: str, body: Json) -> Iterator[tuple[Json, str]]:
    """Every field of the gate that is set, with the object that holds it."""
    if body.get("kind") == "ResourceClaim":
        yield from _present(body.get("status") or {}, _CLAIM_STATUS_FIELDS.get(gate, ()))
        return
    spec = body.get("spec") or {}
    yield from _present(spec, _SPEC_FIELDS.get(gate, ()))
    if gate == "DRAExtendedResource" and body.get("kind") == "DeviceClass":
        yield from _present(spec, ("extendedResourceName",))
    for device in spec.get("devices") or ():
        yield from _present(device, _DEVICE_FIELDS.get(gate, ()))
        for container, fields in _NESTED_FIELDS.get(gate, {}).items():
            nested = device.get(container) or ()
            for holder in nested.values() if isinstance(nested, dict) else nested:
                yield from _present(holder, fields)


def _present(holder: Json, fields: tuple[str, ...]) -> Iterator[tuple[Json, str]]:
    return ((holder, field) for field in fields if field in holder)
