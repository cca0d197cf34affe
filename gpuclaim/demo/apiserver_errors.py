"""Answers other than success, in the API server's own form and words."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FieldError:
    """One complaint about one field; ``message`` as in a Status' causes."""

    type: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class FieldErrors(list[FieldError]):
    """Collects complaints, named as in k8s.io/apimachinery's package field."""

    def required(self, field: str, detail: str = "") -> None:
        self._add("FieldValueRequired", field, "Required value", detail)

    def invalid(self, field: str, value: object, detail: str) -> None:
        self._add("FieldValueInvalid", field, f"Invalid value: {_json(value)}", detail)

    def duplicate(self, field: str, value: object) -> None:
        self._add("FieldValueDuplicate", field, f"Duplicate value: {_json(value)}")

    def forbidden(self, field: str, detail: str) -> None:
        self._add("FieldValueForbidden", field, "Forbidden", detail)

    def not_supported(self, field: str, value: object, supported: Sequence[str]) -> None:
        listed = ", ".join(json.dumps(s) for s in supported)
        self._add("FieldValueNotSupported", field, f"Unsupported value: {_json(value)}", f"supported values: {listed}")

    def too_long(self, field: str, limit: int) -> None:
        self._add("FieldValueTooLong", field, "Too long", f"may not be more than {limit} bytes")

    def too_many(self, field: str, count: int, limit: int) -> None:
        self._add("FieldValueTooMany", field, f"Too many: {count}", f"must have at most {limit} items")

    def _add(self, kind: str, field: str, body: str, detail: str = "") -> None:
        self.append(FieldError(kind, field, f"{body}: {detail}" if detail else body))


class StatusError(Exception):
    """An answer with a Status body."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        self.code = code
        self.reason = reason
        self.details = details or {}
        super().__init__(message)

    def to_json(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def not_found(resource: str, name: str) -> StatusError:
    """``resource``: plural and group, as in "resourceslices.resource.k8s.io"."""
    return StatusError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def already_exists(resource: str, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name))


def conflict(resource: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def invalid(kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """``kind``: kind and group, as in "ResourceSlice.resource.k8s.io"."""
    texts = list(dict.fromkeys(str(e) for e in errors))
    text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(kind, name)
    details["causes"] = [{"reason": e.type, "message": e.message, "field": e.field} for e in errors]
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)


def _details(resource: str, name: str) -> Json:
    plural, _, group = resource.partition(".")
    return {"name": name, "kind": plural, **({"group": group} if group else {})}
