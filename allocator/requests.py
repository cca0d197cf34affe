"""A claim's requests, and whether one device is what a request asks for, with the reason where it isn't."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from allocator.cel import CelError, compile_selector
from allocator.pools import Candidate, Json


class AllocationError(Exception):
    """The scheduler would give up on this pod: an invalid claim, a missing class, a CEL error."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, or one alternative of a prioritized list (then ``name`` is ``request/subrequest``).

    ``count`` is None for all devices that match.
    """

    name: str
    class_name: str
    selectors: tuple[str, ...]
    count: int | None
    admin_access: bool
    tolerations: tuple[Json, ...]

    @property
    def parent(self) -> str:
        """The request's own name, as constraints and configs may call it."""
        return self.name.partition("/")[0]


VerdictKind: TypeAlias = Literal["match", "class-selector", "request-selector", "taint", "unsupported"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a device matches a request; ``text`` is the reason why it doesn't."""

    kind: VerdictKind
    text: str = ""


def parse_requests(claim: Json) -> list[tuple[Request, ...]]:
    """Per request its alternatives in the order in which they are tried; one for a plain request."""
    parsed = []
    for request in claim["spec"]["devices"].get("requests", ()):
        name = request["name"]
        if "firstAvailable" in request:
            parsed.append(tuple(_request(f"{name}/{sub['name']}", sub) for sub in request["firstAvailable"]))
        elif "exactly" in request:
            parsed.append((_request(name, request["exactly"]),))
        else:
            raise AllocationError(f"request {name}: must have exactly or firstAvailable (resource.k8s.io/v1)")
    return parsed


def _request(name: str, spec: Json) -> Request:
    if spec.get("capacity"):
        raise AllocationError(f"request {name}: requests for a share of a device's capacity are not simulated")
    if not spec.get("deviceClassName"):
        raise AllocationError(f"request {name}: deviceClassName is missing")
    mode = spec.get("allocationMode", "ExactCount")
    if mode not in ("ExactCount", "All"):
        raise AllocationError(f"request {name}: unknown allocationMode {mode!r}")
    return Request(
        name=name,
        class_name=spec["deviceClassName"],
        selectors=_expressions(name, spec),
        count=None if mode == "All" else spec.get("count", 1),
        admin_access=bool(spec.get("adminAccess")),
        tolerations=tuple(spec.get("tolerations", ())),
    )


def _expressions(where: str, spec: Json) -> tuple[str, ...]:
    try:
        return tuple(selector["cel"]["expression"] for selector in spec.get("selectors", ()))
    except KeyError as error:
        raise AllocationError(f"{where}: only CEL selectors are known") from error


def judge(request: Request, device_class: Json, device: Candidate) -> Verdict:
    """The class's selectors come first, as in the scheduler. Raises AllocationError for any CEL error."""
    class_name = device_class["metadata"]["name"]
    sources: tuple[tuple[Literal["class-selector", "request-selector"], str, tuple[str, ...]], ...] = (
        ("class-selector", f"class {class_name}", _expressions(f"class {class_name}", device_class["spec"])),
        ("request-selector", f"request {request.name}", request.selectors),
    )
    for kind, where, expressions in sources:
        for index, expression in enumerate(expressions):
            if not _matches(f"{where}, selector {index}", expression, device):
                return Verdict(kind, f"{where}, selector {index} is false: {expression}")
    if device.spec.get("consumesCounters"):
        return Verdict("unsupported", "draws on shared counters, which are not simulated")
    for taint in device.spec.get("taints", ()):
        if taint["effect"] != "None" and not any(_tolerates(one, taint) for one in request.tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return Verdict("taint", f"taint {taint['key']}{value}:{taint['effect']} is not tolerated")
    return Verdict("match")


def _matches(where: str, expression: str, device: Candidate) -> bool:
    try:
        return compile_selector(expression).matches(device.driver, device.spec)
    except CelError as error:
        raise AllocationError(f"{where}: {error}") from error


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or str(toleration.get("value", "")) == str(taint.get("value", ""))
