"""HTTP in front of the registry: paths to verbs, bodies in and out, watches, faults."""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml
from aiohttp import web

import kubeapi.client
from gpuclaim.demo.apiserver_errors import Json, StatusError, bad_request, expired
from gpuclaim.demo.apiserver_faults import Fault, Faults
from gpuclaim.demo.apiserver_registry import Registry, Target, seen_by, selection
from gpuclaim.demo.apiserver_selectors import Predicate
from gpuclaim.demo.apiserver_store import Store, Subscription

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)
_KINDS = {(r.group, r.plural): r for r in vars(kubeapi.client).values() if isinstance(r, kubeapi.client.Resource)}
_MERGE, _APPLY = "application/merge-patch+json", "application/apply-patch+yaml"


class _Cut(Exception):
    """The connection is to be broken off."""


class Handler:
    """Serves every request; see FakeApiServer for what may be done to it."""

    def __init__(self, store: Store, registry: Registry, faults: Faults, bookmark_interval: float) -> None:
        self._store = store
        self._registry = registry
        self._faults = faults
        self._bookmark_interval = bookmark_interval
        self._bookmark_round = 0
        self._end_round = 0
        self._cut_round = 0
        self.open_watches: Counter[str] = Counter()

    def cut_watches(self) -> None:
        self._cut_round += 1
        self._store.wake_watchers()

    def end_watches(self) -> None:
        self._end_round += 1
        self._store.wake_watchers()

    def send_bookmarks(self) -> None:
        self._bookmark_round += 1
        self._store.wake_watchers()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
        try:
            target = _target(request)
            verb = _verb(request, target)
            fault = self._faults.take(verb, target.plural)
            self._authenticate(request)
            if fault is not None and (early := await self._misbehave(fault)) is not None:
                return early
            if verb == "watch":
                return await self._watch(request, target)
            answer = await self._serve(request, verb, target)
            if fault is not None and fault.drop:
                raise _Cut
        except StatusError as e:
            return web.json_response(e.to_json(), status=e.code)
        except _Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return web.json_response(answer, status=201 if verb == "create" else 200)

    def _authenticate(self, request: web.Request) -> None:
        tokens = self._faults.tokens
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if tokens is not None and token not in tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")

    async def _misbehave(self, fault: Fault) -> web.Response | None:
        """An answer in place of the right one, or None once the request may be served."""
        if fault.hang:
            await self._faults.until_released()
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.drop and not fault.done:
            raise _Cut
        if fault.error is None:
            return None
        headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
        if fault.raw_body is not None:
            return web.Response(body=fault.raw_body, status=fault.error.code, headers=headers)
        return web.json_response(fault.error.to_json(), status=fault.error.code, headers=headers)

    async def _serve(self, request: web.Request, verb: str, target: Target) -> Json:
        query = request.query
        fields, labels = query.get("fieldSelector", ""), query.get("labelSelector", "")
        match verb:
            case "get":
                return self._registry.get(target)
            case "list":
                limit = int(query.get("limit") or 0)
                return self._registry.list(target, fields, labels, limit, query.get("continue", ""))
            case "create":
                return self._registry.create(target, await _body(request))
            case "update":
                return self._registry.update(target, await _body(request))
            case "delete":
                return self._registry.delete(target, await _body(request))
            case "deletecollection":
                return self._registry.delete_collection(target, fields, labels)
            case "apply":
                manager, force = query.get("fieldManager", ""), query.get("force") == "true"
                return self._registry.apply(target, await _body(request), manager, force=force)
            case _:
                return self._registry.merge_patch(target, await _body(request))

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        matches = selection(target, query.get("fieldSelector", ""), query.get("labelSelector", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self.open_watches[target.plural] += 1
        self._faults.activity.set()
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds") or 3600)):
                await self._stream(response, target, query, matches)
        except TimeoutError:
            pass
        except StatusError as e:
            await _send(response, "ERROR", e.to_json())
        finally:
            self.open_watches[target.plural] -= 1
            self._faults.activity.set()
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response

    async def _stream(
        self, response: web.StreamResponse, target: Target, query: Mapping[str, str], matches: Predicate
    ) -> None:
        """Until the watch is to end. Raises StatusError for 410 and _Cut when the connection is to break."""
        collection = self._store.collection(target.group, target.plural)
        bookmarks, ends, cuts = self._bookmark_round, self._end_round, self._cut_round
        version = self._store.version
        present: tuple[Json, ...] = ()
        if query.get("resourceVersion", "") in ("", "0"):
            present = tuple(filter(matches, collection.bodies(target.namespace)))
        else:
            version = int(query["resourceVersion"])
            if version < self._store.compacted:
                raise expired(f"too old resource version: {version} ({self._store.compacted})")
        with self._store.watching(collection, version) as subscription:
            for body in present:
                await _send(response, "ADDED", body)
            while True:
                while subscription.pending:
                    change = subscription.pending.popleft()
                    if change.version > version and (event := seen_by(change, matches, target.namespace)) is not None:
                        await _send(response, *event)
                subscription.woken.clear()
                if cuts != self._cut_round:
                    raise _Cut
                if ends != self._end_round:
                    return
                quiet = not await self._woken(subscription, bookmarks)
                if (quiet or bookmarks != self._bookmark_round) and query.get("allowWatchBookmarks") == "true":
                    bookmarks = self._bookmark_round
                    # A watch from a version of the future hears nothing at all, as on a real server.
                    if not subscription.pending and self._store.version >= version:
                        await _send(response, "BOOKMARK", _bookmark(target, self._store.version))

    async def _woken(self, subscription: Subscription, bookmarks: int) -> bool:
        """False when nothing happened for the length of a bookmark interval."""
        if bookmarks != self._bookmark_round:
            return True
        try:
            async with asyncio.timeout(self._bookmark_interval):
                await subscription.woken.wait()
        except TimeoutError:
            return False
        return True


async def _send(response: web.StreamResponse, kind: str, body: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")


def _bookmark(target: Target, version: int) -> Json:
    return {
        "kind": target.kind,
        "apiVersion": target.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }


def _target(request: web.Request) -> Target:
    match = _PATH.fullmatch(request.path)
    if match is None:
        raise StatusError(404, "NotFound", "the server could not find the requested resource")
    group, plural = match["group"] or "", match["plural"]
    known = _KINDS.get((group, plural))
    kind = known.kind if known is not None else plural.removesuffix("s").capitalize()
    return Target(
        group=group,
        version=match["version"],
        plural=plural,
        kind=kind,
        namespace=match["namespace"] or "",
        name=match["name"] or "",
        subresource=match["subresource"] or "",
        dry_run=request.query.get("dryRun") == "All",
    )


def _verb(request: web.Request, target: Target) -> str:
    named = bool(target.name)
    match request.method:
        case "GET" if named:
            return "get"
        case "GET":
            return "watch" if request.query.get("watch") in ("1", "true") else "list"
        case "POST" if not named:
            return "create"
        case "PUT" if named:
            return "update"
        case "DELETE":
            return "delete" if named else "deletecollection"
        case "PATCH" if named and request.content_type == _APPLY:
            return "apply"
        case "PATCH" if named and request.content_type == _MERGE:
            return "patch"
        case "PATCH":
            text = f"the body of the request was in an unknown format - accepted media types: {_MERGE}, {_APPLY}"
            raise StatusError(415, "UnsupportedMediaType", text)
        case _:
            text = "the server does not allow this method on the requested resource"
            raise StatusError(405, "MethodNotAllowed", text)


async def _body(request: web.Request) -> Json:
    raw = await request.read()
    if not raw and request.method == "DELETE":
        return {}
    try:
        body: Any = yaml.safe_load(raw) if request.content_type == _APPLY else json.loads(raw)
    except (ValueError, yaml.YAMLError) as e:
        raise bad_request(f"the body of the request isn't a JSON object: {e}") from e
    if not isinstance(body, dict):
        raise bad_request("the body of the request isn't a JSON object")
    return body
