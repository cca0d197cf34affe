"""JSON merge patch, and server-side apply as far as this project's objects need it.

Simplified in apply: the fields that a manager owns are kept beside the object, not in metadata.managedFields; only
the lists named in ``LIST_KEYS`` are merged by key, all others are replaced whole; a map is always merged key by key,
but opaque JSON (``data``, ``parameters``) is one value. What a plain update or patch changes stops being owned by
whoever applied it, but isn't owned by the updater: so a later apply never conflicts with it.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from gpuclaim.demo.apiserver_errors import Json, StatusError

LIST_KEYS: Mapping[str, tuple[str, ...]] = {
    "metadata.ownerReferences": ("uid",),
    "status.conditions": ("type",),
    "status.devices": ("driver", "pool", "device", "shareID"),
    "status.devices.conditions": ("type",),
    "status.reservedFor": ("uid",),
}
_OPAQUE = frozenset({"data", "parameters"})
_NOT_OWNED = frozenset({"apiVersion", "kind"})
_IDENTITY = frozenset({"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"})

Step = str | tuple[str, ...]
Path = tuple[Step, ...]
"""A key of a map, or the key values of a list's item, for each level. An item itself ends in the step "."."""
Owned = dict[str, set[Path]]
"""Manager to the paths of the fields that it owns."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def apply(live: Json, config: Json, owned: Owned, manager: str, *, force: bool) -> Json:
    """``live`` with ``config`` in it and without what ``manager`` applied before and doesn't any more; ``owned`` is
    brought up to date. Raises StatusError (409) when another manager's field would change without ``force``."""
    wanted = dict(_leaves(config, ()))
    present = dict(_leaves(live, ()))
    conflicts = {
        (other, path)
        for other, paths in owned.items()
        for path in paths & wanted.keys()
        if other != manager and present.get(path) != wanted[path]
    }
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, path in conflicts:
        owned[other].discard(path)
    result: Json = _merge(copy.deepcopy(live), config, ())
    elsewhere = {path for other, paths in owned.items() if other != manager for path in paths}
    gone = owned.get(manager, set()) - wanted.keys() - elsewhere
    # Items first, as a whole: without its key fields an item couldn't be found any more.
    for path in sorted(gone, key=lambda p: (p[-1] != ".", len(p), str(p))):
        _remove(result, path)
    owned[manager] = set(wanted)
    return result


def disown_changed(before: Json, after: Json, owned: Owned) -> None:
    """After an update or a merge patch: whoever applied a field that changed has lost it."""
    old, new = dict(_leaves(before, ())), dict(_leaves(after, ()))
    changed = {path for path in old.keys() | new.keys() if old.get(path) != new.get(path)}
    for paths in owned.values():
        paths -= changed


def _conflict(conflicts: set[tuple[str, Path]]) -> StatusError:
    by = sorted({f'conflict with "{other}": {_text(path)}' for other, path in conflicts})
    count = "1 conflict" if len(by) == 1 else f"{len(by)} conflicts"
    causes = [{"reason": "FieldManagerConflict", "message": text, "field": text.rpartition(": ")[2]} for text in by]
    return StatusError(409, "Conflict", f"Apply failed with {count}: {'; '.join(by)}", {"causes": causes})


def _text(path: Path) -> str:
    return "".join(f".{step}" if isinstance(step, str) else f"[{','.join(step)}]" for step in path if step != ".")


def _list_keys(path: Path) -> tuple[str, ...] | None:
    return LIST_KEYS.get(".".join(step for step in path if isinstance(step, str)))


def _item_key(item: Json, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(item.get(key, "")) for key in keys)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    keys = _list_keys(path)
    if isinstance(value, list) and keys is not None:
        for item in value:
            inner = (*path, _item_key(item, keys))
            yield (*inner, "."), True
            yield from _leaves(item, inner)
    elif isinstance(value, dict) and value and not (path and path[-1] in _OPAQUE):
        for key, item in value.items():
            if (not path and key in _NOT_OWNED) or (path == ("metadata",) and key in _IDENTITY):
                continue
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _merge(live: Any, config: Any, path: Path) -> Any:
    keys = _list_keys(path)
    if isinstance(config, list) and keys is not None:
        items = list(live) if isinstance(live, list) else []
        places = {_item_key(item, keys): index for index, item in enumerate(items)}
        for item in config:
            key = _item_key(item, keys)
            if key in places:
                items[places[key]] = _merge(items[places[key]], item, (*path, key))
            else:
                items.append(copy.deepcopy(item))
        return items
    if isinstance(config, dict) and isinstance(live, dict) and not (path and path[-1] in _OPAQUE):
        return {**live, **{key: _merge(live.get(key), item, (*path, key)) for key, item in config.items()}}
    return copy.deepcopy(config)


def _remove(body: Json, path: Path) -> None:
    """Takes the field out, and every map and list above it that it leaves empty."""
    parents: list[tuple[Any, Any]] = []
    value: Any = body
    walked: Path = ()
    steps = path[:-1] if path[-1] == "." else path
    for step in steps:
        place: Any = step
        if isinstance(step, tuple):
            keys = _list_keys(walked) or ()
            places = [i for i, item in enumerate(value) if _item_key(item, keys) == step]
            if not places:
                return
            place = places[0]
        elif not isinstance(value, dict) or step not in value:
            return
        parents.append((value, place))
        value = value[place]
        walked = (*walked, step)
    if isinstance(value, dict) and value and path[-1] != "." and path[-1] not in _OPAQUE:
        # It was applied as an empty map, and others have filled it.
        return
    container, place = parents.pop()
    del container[place]
    while parents and not container:
        container, place = parents.pop()
        del container[place]
