"""The API's verbs over the store: names, preconditions, dry runs, finalizers, versions.

Not here, unlike in a real server: namespaces needn't exist, nothing is garbage collected by owner references, a pod
is deleted at once, and nobody is refused by RBAC.
"""

import copy
import datetime
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuclaim.demo.apiserver_errors import (
    Json,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    expired,
    not_found,
)
from gpuclaim.demo.apiserver_objects import WITH_GENERATION, admit
from gpuclaim.demo.apiserver_patch import Owned, apply, disown_changed, merge_patch
from gpuclaim.demo.apiserver_selectors import Predicate, field_selector, label_selector
from gpuclaim.demo.apiserver_store import Change, Collection, Key, Store

_GENERATED = 58
"""Bytes kept of a generateName; five random ones follow."""
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about, as its path and parameters say."""

    group: str
    version: str
    plural: str
    kind: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    dry_run: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def path(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def key(self) -> Key:
        return self.namespace, self.name


class Registry:
    """Every method raises StatusError for what a real server refuses."""

    def __init__(
        self, store: Store, gates: Mapping[str, bool], now: Callable[[], datetime.datetime], rng: random.Random
    ) -> None:
        self._store = store
        self._gates = gates
        self._now = now
        self._rng = rng
        self._owned: dict[str, Owned] = {}

    def get(self, target: Target) -> Json:
        return self._stored(target)

    def list(self, target: Target, fields: str, labels: str, limit: int, token: str) -> Json:
        if token:
            kept = self._store.snapshot(token)
            if kept is None:
                raise expired("The provided continue parameter is too old to display a consistent list result")
            version, items = kept
        else:
            matches = selection(target, fields, labels)
            version = self._store.version
            items = [body for body in self._collection(target).bodies(target.namespace) if matches(body)]
        metadata: Json = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            items, rest = items[:limit], items[limit:]
            metadata["continue"] = self._store.keep_snapshot(version, rest)
            metadata["remainingItemCount"] = len(rest)
        return {
            "kind": f"{target.kind}List",
            "apiVersion": target.api_version,
            "metadata": metadata,
            "items": [{k: v for k, v in body.items() if k not in ("kind", "apiVersion")} for body in items],
        }

    def create(self, target: Target, body: Json) -> Json:
        body = self._typed(target, body)
        metadata = body["metadata"]
        if metadata.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(self._rng.choices(_SUFFIX_ALPHABET, k=5))
            metadata["name"] = metadata["generateName"][:_GENERATED] + suffix
        key = (target.namespace, metadata.get("name", ""))
        if key in self._collection(target).objects:
            raise already_exists(target.qualified, key[1])
        metadata.update(self.new_metadata())
        metadata.pop("deletionTimestamp", None)
        body = self._admit(target, body, None)
        if target.kind in WITH_GENERATION:
            body["metadata"]["generation"] = 1
        return body if target.dry_run else self._store.write(self._collection(target), key, body)

    def new_metadata(self) -> Json:
        """What the server gives every new object."""
        uid = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        return {"uid": str(uid), "creationTimestamp": self._now().strftime("%Y-%m-%dT%H:%M:%SZ")}

    def update(self, target: Target, body: Json) -> Json:
        body = self._typed(target, body)
        old = self._stored(target)
        metadata = body["metadata"]
        if metadata.get("name", target.name) != target.name:
            raise bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
            )
        uid = metadata.get("uid", "")
        if uid not in ("", old["metadata"]["uid"]):
            why = (
                f"StorageError: invalid object, Code: 4, Key: /registry/{target.plural}/{target.path}, "
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {old['metadata']['uid']}"
            )
            raise conflict(target.qualified, target.name, why)
        if metadata.get("resourceVersion", "") not in ("", old["metadata"]["resourceVersion"]):
            raise conflict(target.qualified, target.name, _MODIFIED)
        new = self._replace(target, old, body)
        if not target.dry_run:
            disown_changed(old, new, self._owned.get(old["metadata"]["uid"], {}))
        return new

    def merge_patch(self, target: Target, patch: Json) -> Json:
        old = self._stored(target)
        merged: Json = merge_patch(old, patch)
        if merged["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise conflict(target.qualified, target.name, _MODIFIED)
        new = self._replace(target, old, self._typed(target, merged))
        if not target.dry_run:
            disown_changed(old, new, self._owned.get(old["metadata"]["uid"], {}))
        return new

    def apply(self, target: Target, config: Json, manager: str, *, force: bool) -> Json:
        if not manager:
            raise StatusError(400, "BadRequest", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        config = self._typed(target, config)
        if target.key not in self._collection(target).objects:
            return self._apply_new(target, config, manager)
        old = self._stored(target)
        uid = old["metadata"]["uid"]
        owned = {who: set(paths) for who, paths in self._owned.get(uid, {}).items()}
        wanted_uid = config["metadata"].get("uid", uid)
        merged = apply(old, config, owned, manager, force=force)
        merged["metadata"] = {**merged["metadata"], "uid": wanted_uid}
        wanted_version = config["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
        if wanted_version != old["metadata"]["resourceVersion"]:
            raise conflict(target.qualified, target.name, _MODIFIED)
        new = self._replace(target, old, merged)
        if not target.dry_run:
            self._owned[uid] = owned
        return new

    def delete(self, target: Target, options: Json) -> Json:
        old = self._stored(target)
        preconditions = options.get("preconditions") or {}
        for field, name, suspicion in (
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ):
            wanted, stored = preconditions.get(field, ""), old["metadata"][field]
            if wanted not in ("", stored):
                why = (
                    f"the {name} in the precondition ({wanted}) does not match the {name} in record ({stored}). "
                    f"The object might have been {suspicion}"
                )
                raise conflict(target.qualified_kind, target.name, why)
        if target.dry_run:
            return old
        if old["metadata"].get("finalizers"):
            body = copy.deepcopy(old)
            if "deletionTimestamp" not in body["metadata"]:
                body["metadata"]["deletionTimestamp"] = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
                if target.kind in WITH_GENERATION:
                    body["metadata"]["generation"] += 1
            return self._store.write(self._collection(target), target.key, body)
        self._forget(old)
        self._store.remove(self._collection(target), target.key)
        details = {"name": target.name, "group": target.group, "kind": target.plural, "uid": old["metadata"]["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def delete_collection(self, target: Target, fields: str, labels: str) -> Json:
        matches = selection(target, fields, labels)
        collection = self._collection(target)
        chosen = [body for body in collection.bodies(target.namespace) if matches(body)]
        for body in chosen if not target.dry_run else ():
            self._forget(body)
            self._store.remove(collection, (target.namespace, body["metadata"]["name"]))
        return {"kind": f"{target.kind}List", "apiVersion": target.api_version, "metadata": {}, "items": chosen}

    def _apply_new(self, target: Target, config: Json, manager: str) -> Json:
        if target.subresource:
            raise not_found(target.qualified, target.name)
        if uid := config["metadata"].get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise conflict(target.qualified, target.name, why)
        if not config["metadata"].get("name"):
            raise bad_request(
                f"the name of the object ({target.name} based on URL) was undeterminable: name must be provided"
            )
        new = self.create(target, config)
        if not target.dry_run:
            owned: Owned = {}
            apply(config, config, owned, manager, force=True)
            self._owned[new["metadata"]["uid"]] = owned
        return new

    def _replace(self, target: Target, old: Json, body: Json) -> Json:
        """Writes ``body`` over ``old``; an update that changes nothing isn't written, as on a real server."""
        kept = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "namespace", "resourceVersion")
        wanted_uid = body["metadata"].get("uid", "")
        for field in kept:
            body["metadata"].pop(field, None)
            if field in old["metadata"]:
                body["metadata"][field] = old["metadata"][field]
        if wanted_uid:
            body["metadata"]["uid"] = wanted_uid
        new = self._admit(target, body, old)
        if target.kind in WITH_GENERATION and new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if new == old or target.dry_run:
            return new
        collection = self._collection(target)
        if old["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._forget(old)
            self._store.remove(collection, target.key)
            return new
        return self._store.write(collection, target.key, new)

    def _admit(self, target: Target, body: Json, old: Json | None) -> Json:
        return admit(body, old, group=target.group, subresource=target.subresource, gates=self._gates, now=self._now())

    def _typed(self, target: Target, body: Json) -> Json:
        """A copy of a request's body with what its path says; refuses one that says otherwise."""
        body = copy.deepcopy(body)
        kind, api_version = body.get("kind", target.kind), body.get("apiVersion", target.api_version)
        if (kind, api_version) != (target.kind, target.api_version):
            raise bad_request(
                f'{kind} in version "{target.version}" cannot be handled as a {target.kind}: no kind "{kind}" is '
                f'registered for version "{api_version}" in scheme "pkg/runtime/scheme.go:111"'
            )
        metadata = body.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise bad_request("metadata: expected an object")
        if metadata.get("namespace", target.namespace) != target.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if target.namespace:
            metadata["namespace"] = target.namespace
        return {**body, "apiVersion": target.api_version, "kind": target.kind}

    def _collection(self, target: Target) -> Collection:
        return self._store.collection(target.group, target.plural)

    def _stored(self, target: Target) -> Json:
        body = self._collection(target).objects.get(target.key)
        if body is None:
            raise not_found(target.qualified, target.name)
        return body

    def _forget(self, body: Json) -> None:
        self._owned.pop(body["metadata"]["uid"], None)


def selection(target: Target, fields: str, labels: str) -> Predicate:
    kind = f"{target.group}/{target.version}, Kind={target.kind}"
    by_field, by_label = field_selector(target.plural, kind, fields), label_selector(labels)
    return lambda body: by_field(body) and by_label(body)


def seen_by(change: Change, matches: Predicate, namespace: str) -> tuple[str, Json] | None:
    """A change as a watch with a selector sees it: an object that stops matching is DELETED there."""
    if namespace and change.new["metadata"].get("namespace", "") != namespace:
        return None
    before = change.old is not None and matches(change.old)
    after = change.type != "DELETED" and matches(change.new)
    if after:
        return ("MODIFIED" if before else "ADDED"), change.new
    return ("DELETED", change.new) if before else None
