"""Holds a CDI document to the rules of CDI's specification 1.1.0 as the runtime's library enforces them.

Written from the specification's facts, apart from the product's own validation, so that one can catch the other. It
also holds ours to more than the library does: no empty values, and the smallest version that suffices.
"""

import re
from collections.abc import Iterator

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
HOOKS = {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"}

Object = dict[str, object]

FIELDS: dict[str, dict[str, type]] = {
    "spec": {"cdiVersion": str, "kind": str, "annotations": dict, "devices": list, "containerEdits": dict},
    "device": {"name": str, "annotations": dict, "containerEdits": dict},
    "edits": {"env": list, "deviceNodes": list, "hooks": list, "mounts": list, "additionalGids": list},
    "deviceNode": {
        "path": str,
        "hostPath": str,
        "type": str,
        "major": int,
        "minor": int,
        "fileMode": int,
        "permissions": str,
        "uid": int,
        "gid": int,
    },
    "hook": {"hookName": str, "path": str, "args": list, "env": list, "timeout": int},
    "mount": {"hostPath": str, "containerPath": str, "options": list, "type": str},
}
REQUIRED = {
    "spec": {"cdiVersion", "kind", "devices"},
    "device": {"name", "containerEdits"},
    "edits": set(),
    "deviceNode": {"path"},
    "hook": {"hookName", "path"},
    "mount": {"hostPath", "containerPath"},
}
MAY_BE_ZERO = {"fileMode", "uid", "gid"}


def problems(document: object) -> list[str]:
    """What is wrong with ``document``; empty when it is a file that every runtime reads."""
    if not isinstance(document, dict):
        return ["not an object"]
    found = list(_shape("spec", document))
    if found:
        return found
    return [*_kind(str(document["kind"])), *_devices(document), *_version(document)]


def _shape(what: str, value: object) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{what} isn't an object"
        return
    for missing in REQUIRED[what] - value.keys():
        yield f"{what} lacks {missing}"
    for key, content in value.items():
        expected = FIELDS[what].get(key)
        if expected is None:
            yield f"{what} has the unknown field {key}"
        elif type(content) is not expected:
            yield f"{what}.{key} is a {type(content).__name__}"
        elif not content and key not in MAY_BE_ZERO:
            yield f"{what}.{key} is empty"
        else:
            yield from _parts(key, content)


def _parts(key: str, content: object) -> Iterator[str]:
    inner = {"devices": "device", "deviceNodes": "deviceNode", "hooks": "hook", "mounts": "mount"}.get(key)
    if key == "containerEdits":
        yield from _shape("edits", content)
    if isinstance(content, list):
        for entry in content:
            if inner:
                yield from _shape(inner, entry)
            elif type(entry) is not (int if key == "additionalGids" else str):
                yield f"{key} holds a {type(entry).__name__}"


def _kind(kind: str) -> Iterator[str]:
    vendor, _, class_ = kind.partition("/")
    for part in (vendor, class_):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", part):
            yield f"kind {kind} has the bad part {part!r}"


def _devices(document: Object) -> Iterator[str]:
    names = [device["name"] for device in _list(document, "devices")]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._:-]*[A-Za-z0-9]", str(name)):
            yield f"device name {name}"
        if names.count(name) > 1:
            yield f"device {name} twice"
    for edits in _edits(document):
        yield from _edit_values(edits)


def _edit_values(edits: Object) -> Iterator[str]:
    for variable in [*_strings(edits, "env"), *(v for hook in _list(edits, "hooks") for v in _strings(hook, "env"))]:
        if variable.find("=") < 1:
            yield f"variable {variable!r}"
    for node in _list(edits, "deviceNodes"):
        if node.get("type", "") not in ("", "b", "c", "u", "p"):
            yield f"type of node {node}"
        if set(str(node.get("permissions", ""))) - set("rwm"):
            yield f"permissions of node {node}"
    for hook in _list(edits, "hooks"):
        if hook["hookName"] not in HOOKS:
            yield f"hook name {hook['hookName']}"
    paths = [p for part in ("deviceNodes", "hooks", "mounts") for entry in _list(edits, part) for p in _paths(entry)]
    yield from (f"path {path} isn't absolute" for path in paths if not path.startswith("/"))


def _paths(entry: Object) -> list[str]:
    return [str(entry[key]) for key in ("path", "hostPath", "containerPath") if key in entry]


def _version(document: Object) -> Iterator[str]:
    needed = ["0.3.0"]
    edits = list(_edits(document))
    if any(mount.get("type") for edit in edits for mount in _list(edit, "mounts")):
        needed.append("0.4.0")
    if any(str(device["name"])[0].isdigit() for device in _list(document, "devices")):
        needed.append("0.5.0")
    if any("hostPath" in node for edit in edits for node in _list(edit, "deviceNodes")):
        needed.append("0.5.0")
    if "." in str(document["kind"]).partition("/")[2] or "annotations" in document:
        needed.append("0.6.0")
    if any("additionalGids" in edit for edit in edits):
        needed.append("0.7.0")
    smallest = max(needed, key=VERSIONS.index)
    if document["cdiVersion"] != smallest:
        yield f"version {document['cdiVersion']} where {smallest} is right"


def _edits(document: Object) -> Iterator[Object]:
    for holder in (document, *_list(document, "devices")):
        edits = holder.get("containerEdits", {})
        assert isinstance(edits, dict)
        if holder is not document and not edits:
            raise AssertionError("a device without edits passed the shape check")
        yield edits


def _list(holder: Object, key: str) -> list[Object]:
    value = holder.get(key, [])
    assert isinstance(value, list)
    return value


def _strings(holder: Object, key: str) -> list[str]:
    value = holder.get(key, [])
    assert isinstance(value, list)
    return [str(entry) for entry in value]
