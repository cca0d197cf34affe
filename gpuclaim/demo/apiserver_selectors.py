"""Label and field selectors, as far as clients of this project use them."""

import re
from collections.abc import Callable, Mapping

from gpuclaim.demo.apiserver_errors import Json, bad_request

Predicate = Callable[[Json], bool]

_FIELDS: Mapping[str, frozenset[str]] = {
    "pods": frozenset({"spec.nodeName", "status.phase"}),
    "resourceslices": frozenset({"spec.nodeName", "spec.driver"}),
}
_ALWAYS = frozenset({"metadata.name", "metadata.namespace"})
_SET_BASED = re.compile(r"(?P<key>[^\s,()!=]+)\s+(?P<op>in|notin)\s+\((?P<values>[^)]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s,()!=]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s,()]*)")
_EXISTS = re.compile(r"(?P<not>!?)\s*(?P<key>[^\s,()!=]+)")


def field_selector(plural: str, kind: str, text: str) -> Predicate:
    """Raises StatusError (400) for a field that this resource can't be selected by."""
    wanted: list[tuple[str, bool, str]] = []
    for term in filter(None, text.split(",")):
        match = _EQUALITY.fullmatch(term.strip())
        if match is None:
            raise bad_request(f"invalid field selector: {term!r}")
        if match["key"] not in _ALWAYS | _FIELDS.get(plural, frozenset()):
            raise bad_request(f"field label not supported for {kind}: {match['key']}")
        wanted.append((match["key"], match["op"] != "!=", match["value"]))
    return lambda body: all((_field(body, path) == value) == equal for path, equal, value in wanted)


def label_selector(text: str) -> Predicate:
    """Raises StatusError (400) for what isn't a selector."""
    tests: list[Predicate] = []
    rest = text.strip()
    while rest:
        for pattern, build in ((_SET_BASED, _set_based), (_EQUALITY, _equality), (_EXISTS, _exists)):
            match = pattern.match(rest)
            if match is not None and rest[match.end() :].lstrip()[:1] in ("", ","):
                tests.append(build(match))
                rest = rest[match.end() :].lstrip().removeprefix(",").lstrip()
                break
        else:
            raise bad_request(f"unable to parse requirement: {rest!r}")
    return lambda body: all(test(body) for test in tests)


def _field(body: Json, path: str) -> str:
    value: object = body
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _label(body: Json, key: str) -> str | None:
    value = (body["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def _set_based(match: re.Match[str]) -> Predicate:
    key, values = match["key"], {v.strip() for v in match["values"].split(",")}
    wanted = match["op"] == "in"
    return lambda body: (_label(body, key) in values) == wanted


def _equality(match: re.Match[str]) -> Predicate:
    key, value, wanted = match["key"], match["value"], match["op"] != "!="
    return lambda body: (_label(body, key) == value) == wanted


def _exists(match: re.Match[str]) -> Predicate:
    key, wanted = match["key"], not match["not"]
    return lambda body: (_label(body, key) is not None) == wanted
