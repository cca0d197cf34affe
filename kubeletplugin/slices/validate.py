"""The API's rules for devices, checked here so that one bad value doesn't cost the node its slice.

The server refuses a whole slice for one bad value (a driver version with a leading zero, a product name of 65 bytes).
So a bad attribute or capacity is left out, with a report. Where selectors rely on the key (a core key), or where
leaving something out would make the device look better than it is (a taint), the device is left out instead: a CEL
error on one device can fail a pod's scheduling in the whole cluster. Sources: pkg/apis/resource/validation of
Kubernetes 1.36.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deviceclasses import names
from deviceclasses.quantity import QuantityError, parse_quantity
from deviceclasses.semver import parse_version
from kubeapi.client import Json

MAX_TEXT_BYTES = 64
MAX_TAINTS = 16

_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MAX_DOMAIN = 63
_MAX_SUBDOMAIN = 253
_INT64 = range(-(2**63), 2**63)
_TAINT_EFFECTS = ("None", "NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that isn't published, and why, in words for an Event. ``key`` is empty when it is the device."""

    device: str
    key: str
    reason: str

    def __str__(self) -> str:
        what = f"{self.key} of device {self.device}" if self.key else f"device {self.device}"
        return f"leave out {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Checked:
    """``devices`` are valid, in the order given; ``problems`` say what is missing from them."""

    devices: tuple[Json, ...]
    problems: tuple[Problem, ...]


def check_devices(devices: Iterable[Json]) -> Checked:
    """Validates one pool's devices."""
    valid: dict[str, Json] = {}
    problems: list[Problem] = []
    for device in devices:
        name = str(device.get("name", ""))
        reason = _device_problem(device)
        if name in valid:
            reason = "a device of this name is there already"
        if reason:
            problems.append(Problem(name, "", reason))
            continue
        checked, found = _check_keys(device)
        problems.extend(found)
        if checked is not None:
            valid[name] = checked
    return Checked(tuple(valid.values()), tuple(problems))


def pool_name_problem(name: str) -> str:
    """Empty when ``name`` can name a pool."""
    if not name or len(name) > _MAX_SUBDOMAIN or not all(_is_subdomain(part) for part in name.split("/")):
        return f"pool name {name!r} must be DNS subdomains joined by /, at most {_MAX_SUBDOMAIN} characters"
    return ""


def _device_problem(device: Json) -> str:
    name = str(device.get("name", ""))
    if not _DNS_LABEL.fullmatch(name):
        return f"name {name!r} must be a DNS label"
    taints = device.get("taints", ())
    if len(taints) > MAX_TAINTS:
        return f"{len(taints)} taints, {MAX_TAINTS} are allowed"
    return next((reason for taint in taints if (reason := _taint_problem(taint))), "")


def _taint_problem(taint: Json) -> str:
    key, value, effect = taint.get("key", ""), taint.get("value", ""), taint.get("effect")
    domain, slash, label = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(label) or (slash and not _is_subdomain(domain)):
        return f"taint key {key!r} must be a label key"
    if value and not _LABEL_NAME.fullmatch(value):
        return f"taint value {value!r} must be a label value"
    if effect not in _TAINT_EFFECTS:
        return f"taint effect {effect!r} must be one of {', '.join(_TAINT_EFFECTS)}"
    return ""


def _check_keys(device: Json) -> tuple[Json | None, list[Problem]]:
    """The device without its bad keys, or None when it can't do without one of them."""
    name = device["name"]
    bad = [Problem(name, key, reason) for key, reason in _bad_keys(device)]
    core = _core_keys(device)
    for problem in bad:
        if problem.key in core:
            return None, [*bad, Problem(name, "", f"{problem.key} is needed on every device of its type")]
    dropped = {problem.key for problem in bad}
    attributes, capacity = (
        {key: value for key, value in device.get(field, {}).items() if f"{field}.{key}" not in dropped}
        for field in ("attributes", "capacity")
    )
    for key in _surplus_keys(attributes, capacity, core):
        del attributes[key]
        bad.append(Problem(name, f"attributes.{key}", f"more than {names.MAX_KEYS} attributes and capacities"))
    if len(attributes) + len(capacity) > names.MAX_KEYS:
        return None, [*bad, Problem(name, "", f"more than {names.MAX_KEYS} attributes and capacities")]
    rest = {key: value for key, value in device.items() if key not in ("attributes", "capacity")}
    checked = rest | ({"attributes": attributes} if attributes else {}) | ({"capacity": capacity} if capacity else {})
    return checked, bad


def _core_keys(device: Json) -> frozenset[str]:
    """As ``field.key``; none for a device of a type that isn't ours."""
    kind = device.get("attributes", {}).get(names.ATTRIBUTE_TYPE, {}).get("string")
    attributes = names.CORE_ATTRIBUTES.get(kind, frozenset())
    capacity = names.CORE_CAPACITIES.get(kind, frozenset())
    return frozenset(f"attributes.{key}" for key in attributes) | frozenset(f"capacity.{key}" for key in capacity)


def _surplus_keys(attributes: Json, capacity: Json, core: frozenset[str]) -> list[str]:
    """The last attributes that have to go for the limit on keys, core ones excepted."""
    surplus = max(0, len(attributes) + len(capacity) - names.MAX_KEYS)
    removable = [key for key in attributes if f"attributes.{key}" not in core]
    return removable[len(removable) - min(surplus, len(removable)) :]


def _bad_keys(device: Json) -> Iterator[tuple[str, str]]:
    for key, attribute in device.get("attributes", {}).items():
        if reason := _name_problem(key) or _attribute_problem(attribute):
            yield f"attributes.{key}", reason
    for key, entry in device.get("capacity", {}).items():
        if reason := _name_problem(key) or _capacity_problem(entry):
            yield f"capacity.{key}", reason


def _name_problem(key: str) -> str:
    domain, slash, identifier = key.rpartition("/")
    if not _C_IDENTIFIER.fullmatch(identifier):
        return f"name {identifier!r} must be a C identifier of at most 32 characters"
    if slash and (len(domain) > _MAX_DOMAIN or not _is_subdomain(domain)):
        return f"domain {domain!r} must be a DNS subdomain of at most {_MAX_DOMAIN} characters"
    return ""


def _attribute_problem(attribute: Json) -> str:
    match attribute:
        case {"bool": bool()} if len(attribute) == 1:
            return ""
        case {"int": int(number)} if len(attribute) == 1 and not isinstance(number, bool):
            return "" if number in _INT64 else f"{number} is no 64-bit integer"
        case {"string": str(text)} if len(attribute) == 1:
            return _text_problem(text)
        case {"version": str(text)} if len(attribute) == 1:
            return _version_problem(text) or _text_problem(text)
        case _:
            return "must have exactly one value: a string, int, bool or version"


def _text_problem(text: str) -> str:
    size = len(text.encode())
    return f"{size} bytes of text, {MAX_TEXT_BYTES} are allowed" if size > MAX_TEXT_BYTES else ""


def _version_problem(text: str) -> str:
    try:
        parse_version(text)
    except ValueError as error:
        return str(error)
    return ""


def _capacity_problem(entry: Json) -> str:
    try:
        parse_quantity(str(entry.get("value", "")))
    except QuantityError as error:
        return str(error)
    return ""


def _is_subdomain(text: str) -> bool:
    return len(text) <= _MAX_SUBDOMAIN and _DNS_SUBDOMAIN.fullmatch(text) is not None
