"""What the API server does to an object before it stores it: defaults, dropped fields, validation.

One function, ``admit``, for every kind; kinds that are not named here are stored as they come. Unknown fields are
kept, unlike there, and DeviceClasses' CEL isn't compiled.
"""

import copy
import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpuclaim.demo.apiserver_errors import FieldErrors, Json, bad_request, invalid
from gpuclaim.demo.apiserver_fields import (
    canonical_quantity,
    check_dns_subdomain,
    check_driver_name,
    check_label_key,
    is_extended_resource_name,
)
from gpuclaim.demo.apiserver_gates import drop_disabled
from gpuclaim.demo.apiserver_slices import check_slice

WITH_STATUS = frozenset({"Node", "Pod", "ResourceClaim"})
"""Kinds whose status is written through its subresource only."""
WITH_GENERATION = frozenset({"DeviceClass", "ResourceSlice"})
_STATUS_RESET_ON_CREATE = frozenset({"Pod", "ResourceClaim"})
_GATED = frozenset({"ResourceSlice", "DeviceClass", "ResourceClaim"})
_MAPS = frozenset({"annotations", "attributes", "capacity", "labels"})
_JSON_LIMIT = 10 * 1024
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def admit(
    body: Json,
    old: Json | None,
    *,
    group: str,
    subresource: str,
    gates: Mapping[str, bool],
    now: datetime.datetime,
) -> Json:
    """The object to store, from what a client wrote (``old`` is None on create). Raises StatusError."""
    body = _without_nulls(copy.deepcopy(body))
    kind = str(body.get("kind", ""))
    if kind in WITH_STATUS:
        _separate_status(body, old, kind, subresource)
    errors = FieldErrors()
    try:
        if kind in _GATED:
            drop_disabled(body, old, gates)
        if kind == "ResourceClaim" and old is not None:
            _drop_deallocated(body, old)
        fill_defaults(body, now)
        _check_metadata(errors, body, old)
        if check := _CHECKS.get(kind):
            check(errors, body, old)
    except (AttributeError, TypeError) as e:
        raise bad_request(f"{kind} in version {body.get('apiVersion')!r} cannot be handled as a {kind}: {e}") from e
    if errors:
        name = str(body["metadata"].get("name") or body["metadata"].get("generateName") or "")
        raise invalid(f"{kind}.{group}" if group and kind != "Event" else kind, name, errors)
    return _without_empty(body) if kind in _CHECKS else body


def fill_defaults(body: Json, now: datetime.datetime) -> None:
    """Changes ``body`` in place. Raises StatusError for a quantity that is none."""
    if body.get("kind") == "ResourceSlice":
        _default_slice(body, now)
    elif body.get("kind") == "ResourceClaim":
        _default_claim(body)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _without_empty(value: Any, key: str = "") -> Any:
    """Lists, and maps of named things, that are empty aren't written back; opaque JSON stays as it is."""
    if key in ("data", "parameters"):
        return value
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {name: _without_empty(item, name) for name, item in value.items()}
    return {name: item for name, item in inner.items() if item != [] and not (name in _MAPS and item == {})}


def _separate_status(body: Json, old: Json | None, kind: str, subresource: str) -> None:
    if subresource == "status" and old is not None:
        status, metadata = body.get("status"), body["metadata"]
        body.clear()
        body.update(copy.deepcopy(old))
        body["metadata"]["uid"] = metadata.get("uid", body["metadata"].get("uid"))
        body.pop("status", None)
        if status:
            body["status"] = status
    elif old is not None or kind in _STATUS_RESET_ON_CREATE:
        body.pop("status", None)
        if old is not None and "status" in old:
            body["status"] = copy.deepcopy(old["status"])


def _drop_deallocated(claim: Json, old: Json) -> None:
    """Entries of devices that this write takes away from the claim go with them, whoever wrote them."""
    status = claim.get("status") or {}
    gone = _allocated(old) - _allocated(claim)
    devices = status.get("devices") or ()
    kept = [device for device in devices if _device_id(device) not in gone]
    if len(kept) < len(devices):
        status["devices"] = kept


def _allocated(claim: Json) -> set[tuple[str, str, str, str]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return {_device_id(result) for result in (allocation.get("devices") or {}).get("results") or ()}


def _default_slice(body: Json, now: datetime.datetime) -> None:
    """A taint without timeAdded gets the time of this write; quantities are written in their canonical form."""
    spec = body.get("spec") or {}
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", now.strftime("%Y-%m-%dT%H:%M:%SZ"))
    for holder, key in tuple(_quantities(spec)):
        try:
            holder[key] = canonical_quantity(holder[key])
        except ValueError as e:
            raise bad_request(
                'ResourceSlice in version "v1" cannot be handled as a ResourceSlice: quantities must match the regular '
                "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ) from e


def _default_claim(body: Json) -> None:
    for request in ((body.get("spec") or {}).get("devices") or {}).get("requests") or ():
        for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if exact is not None and exact.setdefault("allocationMode", "ExactCount") == "ExactCount":
                exact.setdefault("count", 1)
    for device in (body.get("status") or {}).get("devices") or ():
        # Not a list, but null, is what a real server writes here.
        device.setdefault("conditions", None)


def _quantities(spec: Json) -> Iterator[tuple[Any, Any]]:
    """Every place of a quantity, as container and key."""
    for device in spec.get("devices") or ():
        for capacity in (device.get("capacity") or {}).values():
            yield capacity, "value"
            policy = capacity.get("requestPolicy") or {}
            for holder in (policy, policy.get("validRange") or {}):
                yield from ((holder, key) for key in ("default", "min", "max", "step") if key in holder)
            values = policy.get("validValues") or []
            yield from ((values, index) for index in range(len(values)))
    for counted in (spec, *(spec.get("devices") or ())):
        for counters in (*(counted.get("sharedCounters") or ()), *(counted.get("consumesCounters") or ())):
            yield from ((counter, "value") for counter in (counters.get("counters") or {}).values())


def _check_metadata(errors: FieldErrors, body: Json, old: Json | None) -> None:
    metadata = body["metadata"]
    name = metadata.get("name", "")
    if not name:
        errors.required("metadata.name", "name or generateName is required")
    else:
        check_dns_subdomain(errors, "metadata.name", name)
    for key in metadata.get("labels") or {}:
        check_label_key(errors, "metadata.labels", key)
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                errors.invalid(f"metadata.ownerReferences[{index}].{field}", "", "must not be empty")
    if old is not None and metadata.get("uid") not in (None, "", old["metadata"]["uid"]):
        errors.invalid("metadata.uid", metadata["uid"], "field is immutable")


def _check_opaque(errors: FieldErrors, path: str, config: Json) -> None:
    opaque = config.get("opaque")
    if opaque is None:
        errors.required(f"{path}.opaque")
        return
    check_driver_name(errors, f"{path}.opaque.driver", opaque.get("driver", ""))
    parameters = opaque.get("parameters")
    if parameters is None:
        errors.required(f"{path}.opaque.parameters")
    elif not isinstance(parameters, dict):
        errors.invalid(f"{path}.opaque.parameters", "<value omitted>", "must be a valid JSON object")


def _check_class(errors: FieldErrors, body: Json, old: Json | None) -> None:
    spec = body.get("spec") or {}
    selectors, configs = spec.get("selectors") or [], spec.get("config") or []
    for field, items in (("selectors", selectors), ("config", configs)):
        if len(items) > 32:
            errors.too_many(f"spec.{field}", len(items), 32)
    for index, selector in enumerate(selectors):
        path = f"spec.selectors[{index}].cel"
        if "cel" not in selector:
            errors.required(path)
        elif not selector["cel"].get("expression"):
            errors.required(f"{path}.expression")
        elif len(selector["cel"]["expression"]) > _JSON_LIMIT:
            errors.too_long(f"{path}.expression", _JSON_LIMIT)
    for index, config in enumerate(configs):
        _check_opaque(errors, f"spec.config[{index}]", config)
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended_resource_name(name):
        errors.invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def _check_claim(errors: FieldErrors, body: Json, old: Json | None) -> None:
    if old is not None and old.get("spec") != body.get("spec"):
        errors.invalid("spec", body.get("spec"), "field is immutable")
    status = body.get("status") or {}
    allocated = _allocated(body)
    for index, device in enumerate(status.get("devices") or ()):
        path = f"status.devices[{index}]"
        if _device_id(device) not in allocated:
            names = dict(zip(("Driver", "Pool", "Device", "ShareID"), _device_id(device), strict=True))
            errors.invalid(path, names, "must be an allocated device in the claim")
        if "shareID" in device and not _UUID.fullmatch(device["shareID"]):
            errors.invalid(f"{path}.shareID", device["shareID"], "uid must be in RFC 4122 normalized form")
        if "data" in device and not isinstance(device["data"], dict):
            errors.invalid(f"{path}.data", "<value omitted>", "must be a valid JSON object")
        conditions = device["conditions"] or ()
        if len(conditions) > 8:
            errors.too_many(f"{path}.conditions", len(conditions), 8)
        for number, condition in enumerate(conditions):
            for field in ("type", "status", "reason", "lastTransitionTime"):
                if not condition.get(field):
                    errors.required(f"{path}.conditions[{number}].{field}")
    reserved = status.get("reservedFor") or ()
    if len(reserved) > 256:
        errors.too_many("status.reservedFor", len(reserved), 256)


def _device_id(entry: Json) -> tuple[str, str, str, str]:
    return entry.get("driver", ""), entry.get("pool", ""), entry.get("device", ""), entry.get("shareID", "")


def _check_template(errors: FieldErrors, body: Json, old: Json | None) -> None:
    if old is not None and old.get("spec") != body.get("spec"):
        errors.invalid("spec", body.get("spec"), "field is immutable")


_EVENT_IMMUTABLE = {
    "regarding": "involvedObject",
    "reason": "reason",
    "note": "message",
    "type": "type",
    "eventTime": "eventTime",
    "action": "action",
    "related": "related",
    "reportingController": "reportingController",
    "reportingInstance": "reportingInstance",
}
"""Field to the name that complaints call it by."""


def _check_event(errors: FieldErrors, body: Json, old: Json | None) -> None:
    if body.get("apiVersion") != "events.k8s.io/v1":
        return
    if not body.get("eventTime"):
        errors.required("eventTime")
    namespace = body["metadata"].get("namespace", "")
    if not (body.get("regarding") or {}).get("namespace") and namespace not in ("default", "kube-system"):
        errors.invalid("involvedObject.namespace", "", "does not match event.namespace")
    if body.get("type") not in ("Normal", "Warning"):
        errors.invalid("type", "", f"has invalid value: {body.get('type', '')}")
    for field in ("reportingController", "reportingInstance", "action", "reason"):
        if not body.get(field):
            errors.required(field)
        elif len(body[field].encode()) > 128 and field != "reportingController":
            errors.invalid(field, "", "can have at most 128 characters")
    check_label_key(errors, "reportingController", body.get("reportingController", ""))
    if len(body.get("note", "").encode()) > 1024:
        errors.invalid("message", "", "can have at most 1024 characters")
    series = body.get("series")
    if series is not None and series != (old or {}).get("series"):
        if series.get("count", 0) < 2:
            errors.invalid("series.count", "", "should be at least 2")
        if not series.get("lastObservedTime"):
            errors.required("series.lastObservedTime")
    for field, name in _EVENT_IMMUTABLE.items():
        if old is not None and old.get(field) != body.get(field):
            errors.invalid(name, body.get(field), "field is immutable")


_CHECKS: Mapping[str, Callable[[FieldErrors, Json, Json | None], None]] = {
    "DeviceClass": _check_class,
    "Event": _check_event,
    "ResourceClaim": _check_claim,
    "ResourceClaimTemplate": _check_template,
    "ResourceSlice": check_slice,
}
