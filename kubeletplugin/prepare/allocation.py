"""A claim's JSON, as far as preparing reads it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deviceclasses import names
from kubeapi.client import Json
from kubeapi.errors import NotFound


@dataclass(frozen=True, slots=True)
class Result:
    """One allocated device of this driver. ``request`` is as in the claim, ``req/sub`` for a prioritized list."""

    request: str
    pool: str
    device: str
    share_id: str | None
    admin: bool

    @property
    def answered_request(self) -> str:
        """The kubelet knows a prioritized list by its main request only."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocated claim. ``pods`` are the UIDs of those it is reserved for, ``reserved`` counts all consumers."""

    uid: str
    namespace: str
    name: str
    fingerprint: str
    results: tuple[Result, ...]
    raw: Mapping[str, Any]
    pods: frozenset[str]
    reserved: bool


def read(claim: Json) -> Allocation | None:
    """None for a claim that isn't allocated."""
    allocation = claim.get("status", {}).get("allocation")
    if not allocation:
        return None
    devices = allocation.get("devices", {})
    ours = [result for result in devices.get("results", ()) if result["driver"] == names.DRIVER_NAME]
    metadata = claim["metadata"]
    reserved_for = claim["status"].get("reservedFor", ())
    return Allocation(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        fingerprint=_fingerprint(ours, devices.get("config", ())),
        results=tuple(_result(result) for result in ours),
        raw=allocation,
        pods=pods_of(claim),
        reserved=bool(reserved_for),
    )


def pods_of(claim: Json) -> frozenset[str]:
    """UIDs of the pods that the claim is reserved for."""
    consumers = claim.get("status", {}).get("reservedFor", ())
    return frozenset(
        consumer["uid"] for consumer in consumers if consumer["resource"] == "pods" and not consumer.get("apiGroup")
    )


def is_gone(error: NotFound, name: str) -> bool:
    """Whether a 404 says so of the claim of this name, and not of its API (switched off, another version) nor in a page
    of a proxy's: those say nothing about claims."""
    return error.reason == "NotFound" and f'"{name}"' in error.message


def _result(result: Mapping[str, Any]) -> Result:
    return Result(
        request=result["request"],
        pool=result["pool"],
        device=result["device"],
        share_id=result.get("shareID"),
        admin=bool(result.get("adminAccess")),
    )


def _fingerprint(results: list[Mapping[str, Any]], configs: Any) -> str:
    """Two allocations with one fingerprint get the same answer and effects.

    Times are left out on purpose: a claim that was deallocated and got the same devices again is prepared already.
    """
    ours = [entry for entry in configs if entry.get("opaque", {}).get("driver") == names.DRIVER_NAME]
    kept = ("request", "pool", "device", "shareID", "adminAccess", "consumedCapacity")
    content = {"results": [{key: result[key] for key in kept if key in result} for result in results], "config": ours}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
