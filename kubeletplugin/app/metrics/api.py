"""Counting and timing what is asked of the API server."""

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar, cast

from kubeapi.client import Json, KubeApi, Page, Resource, WatchEvent
from kubeapi.errors import ApiError
from kubeletplugin.app.metrics.metrics import Metrics

T = TypeVar("T")


class CountedApi:
    """A KubeApi around another. The resource's label names a subresource, too: ``resourceclaims/status``."""

    def __init__(self, api: KubeApi, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json:
        return await self._count("get", resource, self._api.get(resource, name, namespace=namespace))

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
        call = self._api.list(
            resource,
            namespace=namespace,
            field_selector=field_selector,
            label_selector=label_selector,
            resource_version=resource_version,
            limit=limit,
            continue_token=continue_token,
        )
        return await self._count("list", resource, call)

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
        events = self._api.watch(
            resource,
            resource_version=resource_version,
            namespace=namespace,
            field_selector=field_selector,
            label_selector=label_selector,
            timeout_seconds=timeout_seconds,
        )
        try:
            async with aclosing(cast("Any", events)) as following:
                async for event in following:
                    yield event
        except ApiError as error:
            self._failed("watch", resource.plural, error)
            raise

    async def create(self, resource: Resource, body: Json, *, namespace: str = "", dry_run: bool = False) -> Json:
        call = self._api.create(resource, body, namespace=namespace, dry_run=dry_run)
        return await self._count("create", resource, call)

    async def replace(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", dry_run: bool = False
    ) -> Json:
        call = self._api.replace(resource, name, body, namespace=namespace, dry_run=dry_run)
        return await self._count("update", resource, call)

    async def delete(
        self, resource: Resource, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        call = self._api.delete(resource, name, namespace=namespace, uid=uid, resource_version=resource_version)
        await self._count("delete", resource, call)

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
        call = self._api.apply(
            resource,
            name,
            body,
            namespace=namespace,
            field_manager=field_manager,
            force=force,
            subresource=subresource,
            dry_run=dry_run,
        )
        return await self._count("apply", resource, call, subresource)

    async def merge_patch(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", subresource: str = ""
    ) -> Json:
        call = self._api.merge_patch(resource, name, body, namespace=namespace, subresource=subresource)
        return await self._count("patch", resource, call, subresource)

    async def close(self) -> None:
        await self._api.close()

    async def _count(self, verb: str, resource: Resource, call: Awaitable[T], subresource: str = "") -> T:
        name = f"{resource.plural}/{subresource}" if subresource else resource.plural
        begun = time.monotonic()
        try:
            answer = await call
        except ApiError as error:
            self._failed(verb, name, error)
            raise
        self._metrics.api_duration.labels(verb, name).observe(time.monotonic() - begun)
        return answer

    def _failed(self, verb: str, resource: str, error: ApiError) -> None:
        self._metrics.api_errors.labels(verb, resource, str(error.status)).inc()
