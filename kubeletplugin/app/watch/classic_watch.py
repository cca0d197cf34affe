"""Follows which of this node's devices another device plugin has handed out, so that no claim is given them too.

Looks at the kubelet's device checkpoint whenever it changes and every half a minute, and at pod-resources with it;
sooner again while something is in doubt. Looks are no step of a Prepare, which sees what the last one found.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol, Self

from kubeletplugin.app.files.file_watch import FileWatch
from kubeletplugin.app.watch.pods import PodRecord
from kubeletplugin.clock import Clock
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.prepare.bells import wait_for_any
from kubeletplugin.prepare.classic import ClassicHold, ClassicHolds, blocked, withhold
from kubeletplugin.prepare.device_checkpoint import Allocated, DeviceCheckpointFile
from kubeletplugin.prepare.pod_resources import PodDevices, PodName, PodResources, PodResourcesSocket
from kubeletplugin.prepare.ports import Processes

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
SOON_SECONDS = 2.0
"""Longer than the moment for which pod-resources is empty after a kubelet's start."""
PAUSE_SECONDS = 1.0
"""Between two looks at least: the kubelet refuses more than ten calls at a burst."""


class Pods(Protocol):
    """This node's pods as far as they are known (see app.watch.pods.NodePods)."""

    def get(self, uid: str) -> PodRecord | None: ...

    def records(self) -> Collection[PodRecord]: ...


class ClassicWatch:
    """``looked`` is set once a first look was made, ``changed`` when devices were taken or came back; whoever waits for
    that one clears it."""

    @classmethod
    def of_kubelet(
        cls,
        root: Path,
        processes: Processes,
        pods: Pods,
        own_pod: str,
        clock: Clock,
        claim_pods: Callable[[str, frozenset[str]], None],
    ) -> Self:
        """``root`` is the kubelet's root directory."""
        return cls(DeviceCheckpointFile(root), PodResourcesSocket(root), processes, pods, own_pod, clock, claim_pods)

    def __init__(
        self,
        checkpoint: DeviceCheckpointFile,
        resources: PodResources,
        processes: Processes,
        pods: Pods,
        own_pod: str,
        clock: Clock,
        claim_pods: Callable[[str, frozenset[str]], None],
    ) -> None:
        """``own_pod`` is the UID of the agent's pod, empty outside of one. ``claim_pods`` is told which pods (UIDs)
        have a claim of ours; it must return at once."""
        self._checkpoint = checkpoint
        self._resources = resources
        self._processes = processes
        self._pods = pods
        self._own_pod = own_pod
        self._clock = clock
        self._claim_pods = claim_pods
        self._holds = ClassicHolds()
        self._unreadable = ""
        self.looked = asyncio.Event()
        self.changed = asyncio.Event()

    def withhold(self, inventory: Inventory) -> Inventory:
        """Without what others have, for whoever gives devices out."""
        return withhold(inventory, self._holds.current)

    def taken(self, inventory: Inventory) -> Mapping[str, ClassicHold]:
        """Who has what, by the device's name."""
        names = {device.uuid: device.name for device in inventory.devices}
        return {names[uuid]: hold for uuid, hold in blocked(inventory, self._holds.current).items()}

    async def run(self) -> None:
        """For ever."""
        watch = FileWatch(self._checkpoint.path)
        watching: asyncio.Future[None] | None = None
        try:
            while True:
                if watching is None and self._checkpoint.path.parent.is_dir():
                    watching = asyncio.ensure_future(watch.run())
                watch.changed.clear()
                await self.look()
                await self._clock.sleep(PAUSE_SECONDS)
                pause = (SOON_SECONDS if self._holds.doubtful else LOOK_SECONDS) - PAUSE_SECONDS
                await wait_for_any(self._clock, asyncio.ensure_future(watch.changed.wait()), pause, cancel=True)
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)

    async def look(self) -> None:
        checkpoint = await asyncio.to_thread(self._checkpoint.read)
        if checkpoint.unreadable not in ("", self._unreadable):
            log.warning("look for devices that others hand out: %s", checkpoint.unreadable)
        self._unreadable = checkpoint.unreadable
        listed = await self._resources.list()
        plausible = listed is not None and self._is_plausible(listed)
        entries: Iterable[Allocated] = checkpoint.allocated
        if listed is not None and plausible:
            over = await self._over(checkpoint.allocated, listed)
            entries = [entry for entry in checkpoint.allocated if entry.pod_uid not in over]
        before = self._holds.current
        seen = self._seen(entries, listed or PodDevices())
        self._holds.update(seen, trusted=plausible and not checkpoint.unreadable)
        self._tell_claims(listed or PodDevices())
        self.looked.set()
        if self._holds.current != before:
            self.changed.set()

    def _is_plausible(self, listed: PodDevices) -> bool:
        """An empty list may be that of a kubelet that has just begun; the own pod is in every whole one."""
        own = self._pods.get(self._own_pod)
        return (own.namespace, own.name) in listed.pods if own else True

    async def _over(self, allocated: Collection[Allocated], listed: PodDevices) -> frozenset[str]:
        """Pods of the checkpoint that have ended for sure: known to nobody as active, and without any process."""
        used = frozenset[str]().union(*(use.devices for use in listed.used))
        suspects = frozenset(
            entry.pod_uid
            for entry in allocated
            if not entry.devices & used and not self._is_active(entry.pod_uid, listed)
        )
        if not suspects:
            return frozenset()
        look = await self._processes.look(suspects, ())
        return frozenset() if look.blind else suspects - look.alive.keys()

    def _is_active(self, uid: str, listed: PodDevices) -> bool:
        """In the kubelet's list of pods that haven't ended, which has their names only."""
        record = self._pods.get(uid)
        return bool(record and (record.namespace, record.name) in listed.pods)

    def _seen(self, allocated: Iterable[Allocated], listed: PodDevices) -> dict[str, ClassicHold]:
        found: dict[str, ClassicHold] = {}

        def add(devices: Iterable[str], resource: str, uid: str, name: str) -> None:
            for device in devices:
                pods = {**(found[device].pods if device in found else {}), uid or name: name}
                found[device] = ClassicHold(resource, pods)

        for entry in allocated:
            record = self._pods.get(entry.pod_uid)
            name = f"{record.namespace}/{record.name}" if record else ""
            add(entry.devices, entry.resource, entry.pod_uid, name)
        uids = self._uids()
        for use in listed.used:
            add(use.devices, use.resource, uids.get(use.pod, ""), "/".join(use.pod))
        return found

    def _tell_claims(self, listed: PodDevices) -> None:
        uids = self._uids() if listed.claims else {}
        for claim, pods in listed.claims.items():
            if known := frozenset(uids[pod] for pod in pods if pod in uids):
                self._claim_pods(claim, known)

    def _uids(self) -> dict[PodName, str]:
        return {(record.namespace, record.name): record.uid for record in self._pods.records()}
