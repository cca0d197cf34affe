"""The narrow client's contract: a handful of verbs over plain JSON objects.

Plain dictionaries, not generated models: those drop fields that they don't know, so that an object read from a newer
server and written back would lose some. Objects are never read, changed and written back; they are built fresh,
applied, or patched.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object and where the server keeps it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


NODES = Resource("", "v1", "nodes", "Node", False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
PODS = Resource("", "v1", "pods", "Pod", True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True)
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list; ``continue_token`` is empty on the last one."""

    items: tuple[Json, ...]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A watch's ADDED, MODIFIED, DELETED or BOOKMARK; an ERROR is raised as ApiError instead."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    object: Json


class KubeApi(Protocol):
    """Every method raises errors.ApiError; ``Unreachable`` when no answer came at all."""

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> Json: ...

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
        """``resource_version`` "" is a consistent read."""

    def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int = 0,
    ) -> AsyncIterator[WatchEvent]:
        """Events after ``resource_version`` until the server ends the watch; bookmarks are asked for."""

    async def create(self, resource: Resource, body: Json, *, namespace: str = "", dry_run: bool = False) -> Json: ...

    async def replace(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", dry_run: bool = False
    ) -> Json:
        """PUT; ``body`` must carry metadata.resourceVersion (ValueError)."""

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> None:
        """With preconditions where given; NotFound is raised like any other error."""

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
        """Server-side apply; the body's metadata.name is filled in."""

    async def merge_patch(
        self, resource: Resource, name: str, body: Json, *, namespace: str = "", subresource: str = ""
    ) -> Json: ...

    async def close(self) -> None: ...
