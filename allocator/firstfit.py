"""A stand-in for the scheduler: structured allocation of a pod's claims on one node, first fit.

Same rules and same result as the real one for what this driver publishes: exact counts and "all", prioritized lists,
selectors of class then request, matchAttribute, admin access, taints. It searches in the same order and backtracks,
so that it finds the same devices, and it says per device why nothing fits, which the real one doesn't.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allocator.pools import Candidate, Json, Pool, gather_pools
from allocator.requests import AllocationError, Request, VerdictKind, judge, parse_requests

MAX_RESULTS = 32
"""Devices of one claim (resource.k8s.io/v1)."""

DeviceId = tuple[str, str, str]


class NoFitError(AllocationError):
    """The node has no free devices that satisfy the claims. ``reports`` has one entry per request and device."""

    def __init__(self, message: str, reports: Sequence["DeviceReport"]) -> None:
        super().__init__(message)
        self.reports = tuple(reports)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """Why one device was or wasn't eligible for one request. ``usable`` ones can still fail a constraint."""

    claim: str
    request: str
    driver: str
    pool: str
    device: str
    usable: bool
    text: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the scheduler looks at. ``claims`` are all that exist: those with an allocation hold devices."""

    slices: Sequence[Json]
    classes: Sequence[Json]
    claims: Sequence[Json] = ()


@dataclass(slots=True)
class _Pick:
    request: Request
    devices: list[Candidate]


@dataclass(slots=True)
class _Search:
    """One attempt for one node; ``picks`` follow the search forth and back."""

    node_name: str
    pools: tuple[Pool, ...]
    classes: Mapping[str, Json]
    holders: Mapping[DeviceId, str]
    claims: Sequence[Json]
    requests: list[list[tuple[Request, ...]]]
    picks: list[list[_Pick]] = field(default_factory=list)
    judged: dict[tuple[int, DeviceId], VerdictKind] = field(default_factory=dict)


def allocate(claims: Sequence[Json], cluster: Cluster, node_name: str, now: datetime.datetime) -> list[dict[str, Any]]:
    """The ``status.allocation`` of each of a pod's claims, none of which has one yet.

    Raises NoFitError when this node can't serve them, AllocationError when no node can.
    """
    search = _begin(claims, cluster, node_name)
    _check_all_mode(search)
    if not _place_claim(search, 0):
        reports = _report(search)
        raise NoFitError(_summary(search, reports), reports)
    return [_allocation(search, index, now) for index in range(len(claims))]


def explain(claims: Sequence[Json], cluster: Cluster, node_name: str) -> tuple[DeviceReport, ...]:
    """Per request and device of the node whether it could be used now, and why not. Raises AllocationError."""
    return _report(_begin(claims, cluster, node_name))


def _begin(claims: Sequence[Json], cluster: Cluster, node_name: str) -> _Search:
    search = _Search(
        node_name=node_name,
        pools=gather_pools(cluster.slices, node_name),
        classes={item["metadata"]["name"]: item for item in cluster.classes},
        holders=_holders(cluster.claims),
        claims=claims,
        requests=[parse_requests(claim) for claim in claims],
        picks=[[] for _ in claims],
    )
    for claim in claims:
        for constraint in claim["spec"]["devices"].get("constraints", ()):
            if "matchAttribute" not in constraint:
                raise AllocationError(f"claim {_name(claim)}: only matchAttribute constraints are known")
        for request in (request for alternatives in parse_requests(claim) for request in alternatives):
            _class(search, request)
    return search


def _check_all_mode(search: _Search) -> None:
    """What "all" means is settled before the search, errors included, even for an alternative that isn't reached."""
    for requests in search.requests:
        for request in (request for alternatives in requests for request in alternatives):
            if request.count is None:
                _all_selected(search, request)


def _holders(claims: Iterable[Json]) -> dict[DeviceId, str]:
    """Devices in use and the claim that holds each; admin access holds nothing."""
    return {
        (result["driver"], result["pool"], result["device"]): _name(claim)
        for claim in claims
        for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        if not result.get("adminAccess")
    }


def _name(claim: Json) -> str:
    metadata = claim["metadata"]
    return f"{metadata.get('namespace', 'default')}/{metadata['name']}"


# --- the search ---


def _place_claim(search: _Search, index: int) -> bool:
    if index == len(search.claims):
        return True
    return _place_request(search, index, 0)


def _place_request(search: _Search, claim: int, index: int) -> bool:
    if index == len(search.requests[claim]):
        return _place_claim(search, claim + 1)
    return any(_place_alternative(search, claim, index, request) for request in search.requests[claim][index])


def _place_alternative(search: _Search, claim: int, index: int, request: Request) -> bool:
    if request.count is None:
        devices = _all_selected(search, request)
        count = len(devices)
    else:
        devices = [device for pool in search.pools for device in pool.devices]
        count = request.count
    held = sum(len(pick.devices) for pick in search.picks[claim])
    if count == 0 or held + count > MAX_RESULTS:
        return False
    pick = _Pick(request, [])
    search.picks[claim].append(pick)
    if _place_devices(search, claim, pick, devices, count, lambda: _place_request(search, claim, index + 1)):
        return True
    search.picks[claim].pop()
    return False


def _place_devices(
    search: _Search, claim: int, pick: _Pick, devices: Sequence[Candidate], count: int, proceed: Callable[[], bool]
) -> bool:
    """Takes ``count`` of ``devices`` in order, then proceeds.

    Only ascending combinations are tried: which of the request's devices was taken first makes no difference.
    """
    if count == 0:
        return proceed()
    choices = devices if pick.request.count is not None else devices[:1]
    for position, device in enumerate(choices):
        if not _is_usable(search, claim, pick.request, device):
            continue
        pick.devices.append(device)
        if _place_devices(search, claim, pick, devices[position + 1 :], count - 1, proceed):
            return True
        pick.devices.pop()
    return False


def _is_usable(search: _Search, claim: int, request: Request, device: Candidate) -> bool:
    """In the scheduler's order: a device in use is skipped before its selectors could fail."""
    if not _is_free(search, claim, request, device) or _kind(search, request, device) != "match":
        return False
    satisfied = _satisfies(search, claim, request, device)
    if not satisfied and request.count is None:
        raise AllocationError(
            f"request {request.name}: asks for all devices, but {device.name} doesn't satisfy a constraint"
        )
    return satisfied


def _is_free(search: _Search, claim: int, request: Request, device: Candidate) -> bool:
    """Admin access is stopped by nothing but its own claim, yet a device picked for it serves no other request of the
    same pod."""
    picks = search.picks[claim] if request.admin_access else [pick for picks in search.picks for pick in picks]
    if any(device.id == other.id for pick in picks for other in pick.devices):
        return False
    return request.admin_access or device.id not in search.holders


def _satisfies(search: _Search, claim: int, request: Request, device: Candidate) -> bool:
    for constraint in search.claims[claim]["spec"]["devices"].get("constraints", ()):
        attribute = constraint["matchAttribute"]
        if not _applies(constraint, request):
            continue
        value = _attribute(device, attribute)
        if value is None:
            return False
        for pick in search.picks[claim]:
            if _applies(constraint, pick.request) and any(_attribute(it, attribute) != value for it in pick.devices):
                return False
    return True


def _applies(constraint: Json, request: Request) -> bool:
    names = constraint.get("requests", ())
    return not names or request.name in names or request.parent in names


def _attribute(device: Candidate, name: str) -> object:
    """By its full name, or by its bare one where the domain is the driver's own."""
    attributes = device.spec.get("attributes", {})
    domain, _, identifier = name.partition("/")
    return attributes.get(name, attributes.get(identifier) if domain == device.driver else None)


def _kind(search: _Search, request: Request, device: Candidate) -> VerdictKind:
    key = (id(request), device.id)
    if key not in search.judged:
        search.judged[key] = judge(request, _class(search, request), device).kind
    return search.judged[key]


def _all_selected(search: _Search, request: Request) -> list[Candidate]:
    """What "all" means: the selectors decide, so that a tainted device is one of them, and then can't be had."""
    for pool in search.pools:
        if pool.problem:
            raise AllocationError(
                f"request {request.name}: asks for all devices, but pool {pool.name} of {pool.driver} is {pool.problem}"
            )
    not_selected = ("class-selector", "request-selector")
    devices = (device for pool in search.pools for device in pool.devices)
    return [device for device in devices if _kind(search, request, device) not in not_selected]


def _class(search: _Search, request: Request) -> Json:
    found = search.classes.get(request.class_name)
    if found is None:
        known = ", ".join(sorted(search.classes)) or "none"
        raise AllocationError(f"request {request.name}: no DeviceClass {request.class_name!r}, known are {known}")
    return found


# --- the result ---


def _allocation(search: _Search, claim: int, now: datetime.datetime) -> dict[str, Any]:
    picks = search.picks[claim]
    devices: dict[str, Any] = {"results": [_result(pick.request, it) for pick in picks for it in pick.devices]}
    config = [*_class_configs(search, picks), *_claim_configs(search.claims[claim], picks)]
    if config:
        devices["config"] = config
    allocation: dict[str, Any] = {
        "allocationTimestamp": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "devices": devices,
    }
    if any(device.node_local for pick in picks for device in pick.devices):
        field_of_node = {"key": "metadata.name", "operator": "In", "values": [search.node_name]}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field_of_node]}]}
    return allocation


def _result(request: Request, device: Candidate) -> dict[str, Any]:
    result: dict[str, Any] = {
        "request": request.name,
        "driver": device.driver,
        "pool": device.pool,
        "device": device.name,
    }
    if request.admin_access:
        result["adminAccess"] = True
    if request.tolerations:
        result["tolerations"] = [dict(toleration) for toleration in request.tolerations]
    return result


def _class_configs(search: _Search, picks: Sequence[_Pick]) -> Iterator[dict[str, Any]]:
    """Each class's configs once, naming all requests that use the class."""
    requests: dict[str, list[str]] = {}
    for pick in picks:
        requests.setdefault(pick.request.class_name, []).append(pick.request.name)
    for class_name, names in requests.items():
        for config in search.classes[class_name]["spec"].get("config", ()):
            yield {"source": "FromClass", "requests": names, **config}


def _claim_configs(claim: Json, picks: Sequence[_Pick]) -> Iterator[dict[str, Any]]:
    """The claim's configs, without those that name only alternatives which were not chosen."""
    for config in claim["spec"]["devices"].get("config", ()):
        names = config.get("requests", ())
        if not names:
            yield {"source": "FromClaim", **config}
            continue
        for pick in picks:
            if pick.request.name in names or pick.request.parent in names:
                yield {"source": "FromClaim", **config}


# --- the reasons ---


def _report(search: _Search) -> tuple[DeviceReport, ...]:
    return tuple(
        _device_report(search, claim, request, device)
        for claim, requests in enumerate(search.requests)
        for alternatives in requests
        for request in alternatives
        for pool in search.pools
        for device in pool.devices
    )


def _device_report(search: _Search, claim: int, request: Request, device: Candidate) -> DeviceReport:
    holder = search.holders.get(device.id)
    try:
        verdict = judge(request, _class(search, request), device)
        usable, text = verdict.kind == "match", verdict.text
    except AllocationError as error:
        usable, text = False, str(error)
    if usable and holder is not None and not request.admin_access:
        usable, text = False, f"in use by claim {holder}"
    return DeviceReport(
        _name(search.claims[claim]), request.name, device.driver, device.pool, device.name, usable, text
    )


def _summary(search: _Search, reports: Sequence[DeviceReport]) -> str:
    """One line: per request how many devices are usable, and the reasons for the others."""
    parts = []
    for claim, requests in zip(search.claims, search.requests, strict=True):
        for request in (request for alternatives in requests for request in alternatives):
            mine = [it for it in reports if it.claim == _name(claim) and it.request == request.name]
            wanted = "all" if request.count is None else str(request.count)
            usable = sum(report.usable for report in mine)
            parts.append(
                f"claim {_name(claim)}, request {request.name} wants {wanted}: {usable} of {len(mine)} devices "
                f"usable{_reasons(mine)}"
            )
    parts.extend(f"pool {pool.name} of {pool.driver} is {pool.problem}" for pool in search.pools if pool.problem)
    return f"node {search.node_name}: {'; '.join(parts)}"


def _reasons(reports: Sequence[DeviceReport]) -> str:
    counts: dict[str, int] = {}
    for report in reports:
        if not report.usable:
            counts[report.text] = counts.get(report.text, 0) + 1
    if not counts:
        return " but not together (constraints, or other requests need them)" if reports else ""
    return f" ({', '.join(f'{count}: {text}' for text, count in counts.items())})"
