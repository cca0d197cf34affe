"""This node's pods, as far as anything here asks about them: who they are, which claims their containers use, and
whether they have started.

A pod as the API server sends it is some 10 KB of JSON and several times that when decoded, and a node may have 250. So
each is boiled down to a record as it comes, and pages are small. What is seen is as old as the watch: good for names,
for words to people, and for where to look; never a reason to end a hold.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from deviceclasses.names import WAKES_ANNOTATION
from kubeapi.client import PODS, Json
from kubeapi.complaints import Complaints
from kubeapi.reflector import Change, ListWatcher, Reflector
from kubeletplugin.clock import Clock

log = logging.getLogger(__name__)

PAGE = 25
"""Pods in one answer to a list."""
_RECORD = "record"
_OF_THE_NODE = frozenset({"configMap", "downwardAPI", "emptyDir", "hostPath", "projected", "secret"})
"""Kinds of volumes that the kubelet makes by itself."""


@dataclass(frozen=True, slots=True)
class PodContainer:
    """An init or ordinary container and what it uses: (name of the ResourceClaim, request), the request being empty
    where the container has the claim's every device."""

    name: str
    claims: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PodRecord:
    """``claims``: ResourceClaims by the pod's own name for them, without those that don't exist yet; ``extended_claim``
    is the one that the scheduler made for extended resources. ``created`` is the API's text. ``started``: the kubelet
    has come past the pod's claims for sure. ``attaches``: it has volumes that others may have to attach first.
    ``wakes`` counts how often an agent has woken it."""

    uid: str
    namespace: str
    name: str
    phase: str
    deleting: bool
    started: bool
    created: str
    claims: Mapping[str, str]
    extended_claim: str
    containers: tuple[PodContainer, ...]
    attaches: bool
    wakes: int

    @property
    def claim_names(self) -> frozenset[str]:
        """Of all ResourceClaims of the pod, in its namespace."""
        return frozenset(self.claims.values()) | ({self.extended_claim} if self.extended_claim else frozenset())


class NodePods:
    """Empty unless ``run`` runs. Use from one event loop."""

    def __init__(self, api: ListWatcher, clock: Clock, node_name: str) -> None:
        self._api = api
        self._clock = clock
        self._node_name = node_name
        self._complaints = Complaints(log, "list and watch this node's pods")
        self._records: dict[str, PodRecord] = {}
        self._reflector: Reflector | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def current(self) -> bool:
        """Whether this is the API server's word of now: there was a list, and the watch since hasn't failed."""
        reflector = self._reflector
        return reflector is not None and reflector.synced.is_set() and not reflector.stats.last_error

    def get(self, uid: str) -> PodRecord | None:
        return self._records.get(uid)

    def records(self) -> Collection[PodRecord]:
        return self._records.values()

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Called after every change; it must return at once and not raise. Returns what ends it."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback)

    async def run(self) -> None:
        """Until cancelled."""
        self._reflector = reflector = Reflector(
            self._api,
            PODS,
            clock=self._clock,
            field_selector=f"spec.nodeName={self._node_name}",
            page_size=PAGE,
            complaints=self._complaints,
            keep=_keep,
        )
        reflector.subscribe(self._changed)
        try:
            await reflector.run()
        finally:
            self._reflector = None
            self._records.clear()

    def _changed(self, change: Change) -> None:
        record: PodRecord = change.object[_RECORD]
        if change.type == "DELETED":
            self._records.pop(record.uid, None)
        else:
            self._records[record.uid] = record
        for callback in self._listeners:
            callback()


def _keep(body: Json) -> Json:
    metadata = body["metadata"]
    kept = {key: metadata.get(key, "") for key in ("name", "namespace", "uid", "resourceVersion")}
    return {"metadata": kept, _RECORD: read_pod(body)}


def read_pod(body: Json) -> PodRecord:
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    claims = _claims(spec, status)
    extended = status.get("extendedResourceClaimStatus") or {}
    return PodRecord(
        uid=metadata["uid"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        phase=status.get("phase", ""),
        deleting="deletionTimestamp" in metadata,
        started=_started(status),
        created=metadata.get("creationTimestamp", ""),
        claims=claims,
        extended_claim=extended.get("resourceClaimName", ""),
        containers=_containers(spec, claims, extended),
        attaches=any(not _OF_THE_NODE & volume.keys() for volume in spec.get("volumes") or ()),
        wakes=_count((metadata.get("annotations") or {}).get(WAKES_ANNOTATION, "")),
    )


def _claims(spec: Json, status: Json) -> dict[str, str]:
    made = {entry["name"]: entry.get("resourceClaimName") for entry in status.get("resourceClaimStatuses") or ()}
    found = {}
    for entry in spec.get("resourceClaims") or ():
        name = entry.get("resourceClaimName") or made.get(entry["name"])
        if name:
            found[entry["name"]] = name
    return found


def _containers(spec: Json, claims: Mapping[str, str], extended: Json) -> tuple[PodContainer, ...]:
    """Those that use a claim."""
    mapped: dict[str, list[tuple[str, str]]] = {}
    for entry in extended.get("requestMappings") or ():
        used = (extended.get("resourceClaimName", ""), entry.get("requestName", ""))
        mapped.setdefault(entry.get("containerName", ""), []).append(used)
    found = []
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        wanted = (container.get("resources") or {}).get("claims") or ()
        named = [(claims[use["name"]], use.get("request", "")) for use in wanted if use["name"] in claims]
        uses = (*named, *mapped.get(container["name"], ()))
        if uses:
            found.append(PodContainer(container["name"], uses))
    return tuple(found)


def _started(status: Json) -> bool:
    """The kubelet prepares a pod's claims before it makes its sandbox. After a reboot it begins anew: no sandbox, and
    what its containers were is of before."""
    containers = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    states = frozenset[str]().union(*((entry.get("state") or {}).keys() for entry in containers))
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    sandbox = conditions.get("PodReadyToStartContainers")
    return "running" in states or sandbox == "True" or (sandbox != "False" and "terminated" in states)


def _count(text: str) -> int:
    """Anybody may write an annotation."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0
