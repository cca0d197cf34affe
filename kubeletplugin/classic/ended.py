"""Which pods have ended for sure, so that what the kubelet's checkpoint still says of them doesn't count.

Three know something: the kubelet's list has the names of all active pods, the API server's pods tie names to UIDs, and
a pod's processes are what must be gone. Whatever can't be told counts as a sign of life.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kubeletplugin.classic.checkpoint import Allocated
from kubeletplugin.classic.pod_resources import PodDevices, PodName
from kubeletplugin.ledger.model import HeldDevice

_RUNNING = "Running"


class Pod(Protocol):
    @property
    def uid(self) -> str: ...

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def phase(self) -> str: ...

    @property
    def deleting(self) -> bool: ...


class Pods(Protocol):
    """This node's pods, by the API server's word."""

    @property
    def current(self) -> bool:
        """Whether that word is one of now: there was a list, and the watch since hasn't failed."""

    def get(self, uid: str) -> Pod | None: ...

    def records(self) -> Collection[Pod]: ...


class Sight(Protocol):
    """See prepare.ports.Look."""

    @property
    def alive(self) -> Mapping[str, frozenset[int]]: ...

    @property
    def blind(self) -> str: ...


class Processes(Protocol):
    """See prepare.ports.Processes."""

    async def look(self, pods: Collection[str], devices: Collection[HeldDevice]) -> Sight: ...


def is_whole(listed: PodDevices, pods: Pods, own_pod: str) -> bool:
    """A kubelet that has just begun answers with an empty list, and no sooner with part of one than it knows a pod.
    ``own_pod`` counts as running whatever the API server knows of that; an agent need not be in one."""
    running = (pod for pod in pods.records() if pod.phase == _RUNNING and not pod.deleting)
    own = pods.get(own_pod)
    expected = {_name(pod) for pod in (*running, *([own] if own else ()))}
    return expected <= listed.pods


def suspects(allocated: Iterable[Allocated], listed: PodDevices, pods: Pods) -> frozenset[str]:
    """UIDs of pods that the kubelet doesn't list as active. ``listed`` must be whole and ``pods`` current."""
    used = frozenset[str]().union(*(use.devices for use in listed.used))
    # An active pod that the API server hasn't told of may be any of those that are known by their UID alone.
    strangers = not listed.pods <= uids(pods).keys()
    found = set()
    for entry in allocated:
        pod = pods.get(entry.pod_uid)
        active = _name(pod) in listed.pods if pod else strangers
        if not active and not entry.devices & used:
            found.add(entry.pod_uid)
    return frozenset(found)


def uids(pods: Pods) -> dict[PodName, str]:
    return {_name(pod): pod.uid for pod in pods.records()}


def names(pods: Pods, uid: str) -> str:
    """``namespace/name``, empty while not known."""
    pod = pods.get(uid)
    return "/".join(_name(pod)) if pod else ""


def _name(pod: Pod) -> PodName:
    return (pod.namespace, pod.name)
