"""KubeApi over HTTP: paths, parameters and bodies of the Kubernetes API, and how to reach it.

What importing costs, measured on Python 3.11 beyond a bare interpreter's 9 MB: this module 0.2 s and 26 MB, nearly all
of it aiohttp; with ``kubernetes.aio``, or any part of it, 0.4 to 0.7 s and 47 MB, since ``kubernetes/__init__`` brings
the synchronous client along. So requests go through aiohttp and a pod's own service account is read here;
``kubernetes.aio`` is imported only when a kubeconfig is used, where its loader's contexts, exec plugins and OIDC are
worth it.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from kubeapi.client import Json, Page, Resource, WatchEvent
from kubeapi.credentials import (
    SERVICE_ACCOUNT_DIR,
    ConnectionSource,
    ServiceAccount,
    in_cluster,
)
from kubeapi.errors import ApiError, ConfigError
from kubeapi.transport import Timeouts, Transport

DEFAULT_KUBECONFIG = "~/.kube/config"


async def connect(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    timeouts: Timeouts | None = None,
    user_agent: str = "gpuclaim",
    environ: Mapping[str, str] = os.environ,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> "RestKubeApi":
    """A client for the first of: ``kubeconfig``, $KUBECONFIG, the pod's service account, ~/.kube/config.

    Makes no request. Raises ConfigError when none is there, or the first one that is there is unusable: falling
    through to another cluster than the one meant would be worse than stopping.
    """
    source = await _source(kubeconfig, context, environ, service_account_dir)
    return RestKubeApi(source, timeouts=timeouts, user_agent=user_agent)


async def _source(
    kubeconfig: str | None, context: str | None, environ: Mapping[str, str], service_account_dir: Path
) -> ConnectionSource:
    paths = kubeconfig or environ.get("KUBECONFIG", "")
    if not paths and context is None and in_cluster(environ):
        return ServiceAccount(directory=service_account_dir, environ=environ)
    paths = paths or _default_kubeconfig()
    if not paths:
        raise ConfigError(
            "find an API server: no --kubeconfig, no $KUBECONFIG, not in a pod, no ~/.kube/config; give one of them"
        )
    from kubeapi.kubeconfig import KubeconfigSource

    return await KubeconfigSource.load(paths, context)


def _default_kubeconfig() -> str:
    path = Path(DEFAULT_KUBECONFIG).expanduser()
    return str(path) if path.exists() else ""


class RestKubeApi:
    """Implements client.KubeApi. Bodies get apiVersion and kind when they lack them; so do the items of a list,
    which the server sends without, so that an object looks the same whichever way it came."""

    def __init__(
        self, source: ConnectionSource, *, timeouts: Timeouts | None = None, user_agent: str = "gpuclaim"
    ) -> None:
        self._transport = Transport(source, timeouts or Timeouts(), user_agent)

    async def __aenter__(self) -> "RestKubeApi":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        return await self._transport.call("GET", _object_path(resource, namespace, name))

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        resource_version: str = "",
        limit: int = 0,
        continue_token: str = "",
    ) -> Page:
        params = _params(
            fieldSelector=field_selector,
            labelSelector=label_selector,
            resourceVersion=resource_version,
            limit=str(limit) if limit else "",
        )
        if continue_token:
            params["continue"] = continue_token
        answer = await self._transport.call("GET", _collection_path(resource, namespace), params=params)
        metadata = answer.get("metadata") or {}
        return Page(
            items=tuple(_typed(resource, item) for item in answer.get("items") or ()),
            resource_version=str(metadata.get("resourceVersion", "")),
            continue_token=str(metadata.get("continue", "")),
        )

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 0,
    ) -> AsyncIterator[WatchEvent]:
        params = _params(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            fieldSelector=field_selector,
            labelSelector=label_selector,
            timeoutSeconds=str(timeout_seconds) if timeout_seconds else "",
        )
        lines = self._transport.lines(_collection_path(resource, namespace), params=params)
        async with aclosing(cast("Any", lines)) as frames:
            async for frame in frames:
                kind, body = frame.get("type"), frame.get("object")
                if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(body, dict):
                    raise ApiError(200, "NotAnEvent", f"watch {resource.plural}: unknown event type {kind!r}")
                yield WatchEvent(kind, body)

    async def create(self, resource: Resource, body: Json, *, namespace: str = "", dry_run: bool = False) -> Json:
        return await self._transport.call(
            "POST",
            _collection_path(resource, _required_namespace(resource, namespace)),
            params=_params(dryRun="All" if dry_run else ""),
            body=_typed(resource, body),
        )

    async def replace(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", dry_run: bool = False
    ) -> Json:
        if not (body.get("metadata") or {}).get("resourceVersion"):
            raise ValueError(f"replace {resource.plural} {name!r}: body without metadata.resourceVersion")
        return await self._transport.call(
            "PUT",
            _object_path(resource, namespace, name),
            params=_params(dryRun="All" if dry_run else ""),
            body=_typed(resource, body),
        )

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        preconditions = _params(uid=uid, resourceVersion=resource_version)
        body: Json = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            body["preconditions"] = preconditions
        await self._transport.call("DELETE", _object_path(resource, namespace, name), body=body)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Json,
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = True,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        return await self._transport.call(
            "PATCH",
            _object_path(resource, namespace, name, subresource),
            params=_params(fieldManager=field_manager, force="true" if force else "", dryRun="All" if dry_run else ""),
            body={**_typed(resource, body), "metadata": {"name": name, **(body.get("metadata") or {})}},
            content_type="application/apply-patch+yaml",
        )

    async def merge_patch(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", subresource: str = ""
    ) -> Json:
        return await self._transport.call(
            "PATCH",
            _object_path(resource, namespace, name, subresource),
            body=body,
            content_type="application/merge-patch+json",
        )


def _typed(resource: Resource, body: Json) -> Json:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _params(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _required_namespace(resource: Resource, namespace: str) -> str:
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.plural} are namespaced: a namespace is needed")
    return namespace


def _collection_path(resource: Resource, namespace: str) -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    scope = f"/namespaces/{quote(namespace, safe='')}" if resource.namespaced and namespace else ""
    return f"{root}{scope}/{resource.plural}"


def _object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        raise ValueError(f"{resource.plural}: a name is needed")
    path = f"{_collection_path(resource, _required_namespace(resource, namespace))}/{quote(name, safe='')}"
    return f"{path}/{subresource}" if subresource else path
