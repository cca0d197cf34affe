"""What the API server checks in a ResourceSlice before it stores it (Kubernetes 1.36, pkg/apis/resource/validation).

Left out: the formats inside node selectors, and nodeAllocatableResourceMappings, an alpha field that is dropped.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from gpuclaim.demo.apiserver_errors import FieldErrors, Json
from gpuclaim.demo.apiserver_fields import (
    check_dns_label,
    check_dns_subdomain,
    check_driver_name,
    check_label_key,
    check_label_value,
    check_qualified_name,
    is_semver,
    parse_quantity,
)

MAX_DEVICES = 128
MAX_DEVICES_ADVANCED = 64
MAX_COUNTER_SETS = 8
MAX_KEYS = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_VALUE_BYTES = 64
_LISTS = ("bools", "ints", "strings", "versions")
_SCALARS = ("bool", "int", "string", "version")
_NODE_FIELDS = ("nodeName", "nodeSelector", "allNodes")
_EFFECTS = ("NoExecute", "NoSchedule", "None")


def check_slice(errors: FieldErrors, body: Json, old: Json | None) -> None:
    spec: Json = body.get("spec") or {}
    check_driver_name(errors, "spec.driver", spec.get("driver", ""))
    _check_pool(errors, spec.get("pool") or {})
    if old is not None:
        _check_immutable(errors, spec, old.get("spec") or {})
    _check_nodes(errors, spec)
    if "sharedCounters" in spec and "devices" in spec:
        errors.invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    devices = spec.get("devices") or []
    before = {d.get("name"): d for d in ((old or {}).get("spec") or {}).get("devices") or []}
    per_device = bool(spec.get("perDeviceNodeSelection"))
    _check_set(
        errors,
        "spec.devices",
        devices,
        MAX_DEVICES_ADVANCED if any(_is_advanced(d) for d in devices) else MAX_DEVICES,
        "name",
        lambda field, device: _check_device(errors, field, device, before.get(device.get("name")), per_device),
    )
    _check_set(
        errors,
        "spec.sharedCounters",
        spec.get("sharedCounters") or [],
        MAX_COUNTER_SETS,
        "name",
        lambda field, counters: _check_counters(errors, field, counters, "name"),
    )


def _is_advanced(device: Json) -> bool:
    attributes: Iterable[Json] = (device.get("attributes") or {}).values()
    return bool(
        device.get("taints")
        or device.get("consumesCounters")
        or any(key in attribute for attribute in attributes for key in _LISTS)
    )


def _check_pool(errors: FieldErrors, pool: Json) -> None:
    name = pool.get("name", "")
    if not name:
        errors.required("spec.pool.name")
    else:
        if len(name) > 253:
            errors.too_long("spec.pool.name", 253)
        for part in name.split("/"):
            check_dns_subdomain(errors, "spec.pool.name", part)
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        errors.invalid("spec.pool.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        errors.invalid("spec.pool.generation", generation, "must be greater than or equal to zero")


def _check_immutable(errors: FieldErrors, spec: Json, old: Json) -> None:
    pairs = {
        "pool.name": ((spec.get("pool") or {}).get("name"), (old.get("pool") or {}).get("name")),
        "driver": (spec.get("driver"), old.get("driver")),
        "nodeName": (spec.get("nodeName"), old.get("nodeName")),
    }
    for field, (new, before) in pairs.items():
        if new != before:
            errors.invalid(f"spec.{field}", new, "field is immutable")


def _check_nodes(errors: FieldErrors, spec: Json) -> None:
    chosen = _chosen(errors, "spec", spec, (*_NODE_FIELDS, "perDeviceNodeSelection"))
    terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if "nodeSelector" in spec and len(terms) != 1:
        errors.invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term")
    rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not chosen:
        errors.required("spec", rule)
    elif len(chosen) > 1:
        errors.invalid("spec", f"{{{', '.join(chosen)}}}", f"{rule}, but multiple fields are set")


def _chosen(errors: FieldErrors, path: str, body: Json, fields: tuple[str, ...]) -> list[str]:
    """Which of the fields that choose nodes are set; empty and false ones are errors in themselves."""
    chosen = []
    for field in fields:
        if field not in body:
            continue
        value = body[field]
        if field == "nodeSelector":
            chosen.append(f"`{field}`")
        elif not value:
            wanted = "a non-empty string" if field == "nodeName" else "true"
            errors.invalid(f"{path}.{field}", value, f"must be either unset or set to {wanted}")
        else:
            chosen.append(f"`{field}`")
            if field == "nodeName":
                check_dns_subdomain(errors, f"{path}.{field}", value)
    return chosen


def _check_device(errors: FieldErrors, path: str, device: Json, old: Json | None, per_device: bool) -> None:
    check_dns_label(errors, f"{path}.name", device.get("name", ""))
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    keys = len(attributes) + len(capacity)
    if keys > MAX_KEYS:
        errors.invalid(path, keys, f"the total number of attributes and capacities must not exceed {MAX_KEYS}")
    values = sum(max(1, sum(len(a.get(key) or ()) for key in _LISTS)) for a in attributes.values())
    if values > MAX_ATTRIBUTE_VALUES:
        errors.invalid(path, values, f"the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}")
    for name, attribute in attributes.items():
        check_qualified_name(errors, f"{path}.attributes", name)
        _check_attribute(errors, f"{path}.attributes[{name}]", attribute)
    for name, value in capacity.items():
        check_qualified_name(errors, f"{path}.capacity", name)
        _check_capacity(errors, f"{path}.capacity[{name}]", value, bool(device.get("allowMultipleAllocations")))
    if old is None or old.get("taints") != device.get("taints"):
        _check_taints(errors, f"{path}.taints", device.get("taints") or [])
    _check_set(
        errors,
        f"{path}.consumesCounters",
        device.get("consumesCounters") or [],
        2,
        "counterSet",
        lambda field, consumed: _check_counters(errors, field, consumed, "counterSet"),
    )
    _check_device_nodes(errors, path, device, per_device)
    _check_binding(errors, path, device.get("bindingConditions") or [], device.get("bindingFailureConditions") or [])


def _check_device_nodes(errors: FieldErrors, path: str, device: Json, per_device: bool) -> None:
    condition = "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    if not per_device:
        if any(field in device for field in _NODE_FIELDS):
            errors.invalid(path, None, f"`nodeName`, `nodeSelector` and `allNodes` can only be set if {condition}")
        return
    chosen = _chosen(errors, path, device, _NODE_FIELDS)
    if len(chosen) != 1:
        errors.required(path, f"exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when {condition}")


def _check_attribute(errors: FieldErrors, path: str, attribute: Json) -> None:
    present = [key for key in (*_SCALARS, *_LISTS) if key in attribute]
    for key in present:
        values = attribute[key] if key in _LISTS else [attribute[key]]
        if key in _LISTS and not values:
            errors.invalid(f"{path}.{key}", values, "must not be empty if specified")
        for value in values:
            if key.startswith("version") and not is_semver(value):
                errors.invalid(f"{path}.{key}", value, "must be a string compatible with semver.org spec 2.0.0")
            if key.startswith(("string", "version")) and len(value.encode()) > MAX_VALUE_BYTES:
                errors.too_long(f"{path}.{key}", MAX_VALUE_BYTES)
    if len(present) != 1:
        errors.invalid(path, attribute if present else "", "exactly one value must be specified")


def _check_capacity(errors: FieldErrors, path: str, capacity: Json, multiple: bool) -> None:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return
    path = f"{path}.requestPolicy"
    if not multiple:
        errors.forbidden(path, "allowMultipleAllocations must be true")
    elif policy.get("validValues") and "validRange" in policy:
        errors.forbidden(
            path, 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        )
    elif policy.get("validValues"):
        _check_valid_values(errors, path, policy, capacity.get("value"))
    elif "validRange" in policy:
        _check_valid_range(errors, path, policy, capacity.get("value"))


def _check_valid_values(errors: FieldErrors, path: str, policy: Json, maximum: object) -> None:
    if "default" not in policy:
        errors.required(f"{path}.default", "required when validValues is defined")
        return
    values = policy["validValues"]
    amounts = [_amount(v) for v in values]
    path = f"{path}.validValues"
    if len(values) > 10:
        errors.too_many(path, len(values), 10)
    for index, amount in enumerate(amounts):
        if index and amounts[index - 1] > amount:
            errors.invalid(f"{path}[{index}]", values[index], "values must be sorted in ascending order")
        if amount in amounts[:index]:
            errors.duplicate(f"{path}[{index}]", values[index])
        if amount > _amount(maximum):
            errors.invalid(f"{path}[{index}]", values[index], f"option is larger than capacity value: {maximum}")
    if _amount(policy["default"]) not in amounts:
        errors.invalid(path, policy["default"], "default value is not valid according to the requestPolicy")


def _check_valid_range(errors: FieldErrors, path: str, policy: Json, maximum: object) -> None:
    valid, default = policy["validRange"], policy.get("default")
    if default is None:
        errors.required(f"{path}.default", "required when validRange is defined")
        return
    path = f"{path}.validRange"
    if "min" not in valid:
        errors.required(f"{path}.min", "required when validRange is defined")
        return
    low, high, step = valid["min"], valid.get("max"), valid.get("step")
    if _amount(low) > _amount(maximum):
        errors.invalid(f"{path}.min", low, f"min is larger than capacity value: {maximum}")
    if _amount(default) < _amount(low):
        errors.invalid(f"{path}.min", default, f"default is less than min: {low}")
    if high is not None:
        if _amount(low) > _amount(high):
            errors.invalid(f"{path}.max", low, f"min is larger than max: {high}")
        if _amount(high) > _amount(maximum):
            errors.invalid(f"{path}.max", high, f"max is larger than capacity value: {maximum}")
        if _amount(default) > _amount(high):
            errors.invalid(f"{path}.max", default, f"default is more than max: {high}")
    for value in (default, high) if step is not None else ():
        if value is not None and (_amount(value) - _amount(low)) % _amount(step):
            errors.invalid(f"{path}.step", value, f"value is not a multiple of a given step ({step}) from ({low})")


def _check_taints(errors: FieldErrors, path: str, taints: list[Json]) -> None:
    if len(taints) > 16:
        errors.too_many(path, len(taints), 16)
        return
    for index, taint in enumerate(taints):
        check_label_key(errors, f"{path}[{index}].key", taint.get("key", ""))
        check_label_value(errors, f"{path}[{index}].value", taint.get("value", ""))
        effect = taint.get("effect", "")
        if not effect:
            errors.required(f"{path}[{index}].effect")
        elif effect not in _EFFECTS:
            errors.not_supported(f"{path}[{index}].effect", effect, _EFFECTS)


def _check_counters(errors: FieldErrors, path: str, counted: Json, name_field: str) -> None:
    """A counter set, or a device's consumption from one."""
    if not counted.get(name_field):
        errors.required(f"{path}.{name_field}")
    else:
        check_dns_label(errors, f"{path}.{name_field}", counted[name_field])
    counters = counted.get("counters") or {}
    if not counters:
        errors.required(f"{path}.counters")
    if len(counters) > 32:
        errors.too_many(f"{path}.counters", len(counters), 32)
    for name in counters:
        check_dns_label(errors, f"{path}.counters", name)


def _check_binding(errors: FieldErrors, path: str, conditions: list[str], failures: list[str]) -> None:
    for field, names in (("bindingConditions", conditions), ("bindingFailureConditions", failures)):
        if len(names) > 4:
            errors.too_many(f"{path}.{field}", len(names), 4)
        for index, name in enumerate(names):
            check_label_key(errors, f"{path}.{field}[{index}]", name)
            if name in names[:index]:
                errors.duplicate(f"{path}.{field}[{index}]", name)
    for index, name in enumerate(failures):
        if name in conditions:
            place = f"{path}.bindingFailureConditions[{index}]"
            errors.invalid(place, name, "bindingFailureConditions must not overlap with bindingConditions")
    for missing, field, other in (
        (conditions, "bindingConditions", "bindingFailureConditions"),
        (failures, "bindingFailureConditions", "bindingConditions"),
    ):
        if not missing and (conditions or failures):
            errors.invalid(f"{path}.{field}", None, f"{field} are required to use {other}")


def _check_set(
    errors: FieldErrors,
    path: str,
    items: list[Json],
    limit: int,
    key: str,
    check: Callable[[str, Json], Any],
) -> None:
    if len(items) > limit:
        errors.too_many(path, len(items), limit)
        return
    seen: set[object] = set()
    for index, item in enumerate(items):
        check(f"{path}[{index}]", item)
        if item.get(key) in seen:
            errors.duplicate(f"{path}[{index}]", item.get(key))
        seen.add(item.get(key))


def _amount(value: object) -> Fraction:
    return parse_quantity(value) or Fraction(0)
