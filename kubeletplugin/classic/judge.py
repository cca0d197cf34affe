"""Judges from the kubelet's two sources which devices another device plugin has given out.

Nothing says when such a hold is over, and neither source is enough alone: the device checkpoint keeps pods that have
ended until the next Allocate or ListAndWatch message, pod-resources leaves out ordinary init containers and is empty
for a moment after a kubelet's start. So what takes a device counts at once, and what gives it back is doubted:

- The checkpoint has every Allocate that was answered. Each of its entries is a hold as soon as it is read, which is
  cheap enough to be done before every commit of a claim. While it can't be read, any device may have been given out,
  and none is offered.
- pod-resources, with the API server's pods and the processes there are, only removes doubt: an entry doesn't count for
  a pod that has ended for sure, or a node that leaves its device plugin would never get the last GPUs back.
- A look counts only if the kubelet's list is whole, and whoever was missed in one must be missed in the next, too.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Self

from kubeletplugin.classic.checkpoint import Allocated, Checkpoint, DeviceCheckpoint, DeviceCheckpointFile
from kubeletplugin.classic.ended import Pods, Processes, is_whole, names, suspects, uids
from kubeletplugin.classic.holds import ClassicHold, ClassicHolds, withhold
from kubeletplugin.classic.pod_resources import PodDevices, PodResources, PodResourcesSocket
from kubeletplugin.inventory.model import Inventory


class ClassicJudge:
    """``changed`` is set when devices were taken or came back; whoever waits for it clears it. ``rewritten`` is set
    while the checkpoint is another than at the last look. Use from one event loop."""

    @classmethod
    def of_kubelet(cls, root: Path, processes: Processes, pods: Pods, own_pod: str) -> Self:
        """``root`` is the kubelet's root directory."""
        return cls(DeviceCheckpointFile(root), PodResourcesSocket(root), processes, pods, own_pod)

    def __init__(
        self, checkpoint: Checkpoint, resources: PodResources, processes: Processes, pods: Pods, own_pod: str
    ) -> None:
        """``own_pod`` is the UID of the agent's pod, if it is in one."""
        self._file = checkpoint
        self._resources = resources
        self._processes = processes
        self._pods = pods
        self._own_pod = own_pod
        self._reading = asyncio.Lock()
        self._checkpoint = DeviceCheckpoint(unreadable="the kubelet's device checkpoint hasn't been read yet")
        self._holds = ClassicHolds()
        self._missed: frozenset[str] = frozenset()
        self._ended: frozenset[str] = frozenset()
        self.settled = False
        """Whether no hold is about to end, as far as the last look could tell."""
        self.changed = asyncio.Event()
        self.rewritten = asyncio.Event()

    @property
    def holds(self) -> Mapping[str, ClassicHold]:
        """By token."""
        return self._holds.current

    @property
    def blind(self) -> str:
        """Why any device may have been given out; empty while what has been is known."""
        return self._checkpoint.unreadable

    @property
    def nameless(self) -> Collection[Allocated]:
        """What NVIDIA's own resources gave out without a word about which device that is."""
        return [entry for entry in self._checkpoint.allocated if not entry.devices]

    def withhold(self, inventory: Inventory) -> Inventory:
        """Without what others have, for whoever gives devices out."""
        blind = f"what other device plugins gave out isn't known: {self.blind}" if self.blind else ""
        return withhold(inventory, self.holds, blind)

    async def read(self) -> None:
        """Takes note of what was given out until now."""
        async with self._reading:
            checkpoint = await asyncio.to_thread(self._file.read)
            if checkpoint != self._checkpoint:
                self._take(checkpoint)

    def _take(self, checkpoint: DeviceCheckpoint) -> None:
        """A pod that had ended may be in the new version anew: a static one keeps its UID."""
        before = (self.holds, self.blind)
        self._checkpoint = checkpoint
        self._missed = self._ended = frozenset()
        self._holds.see(self._seen(checkpoint.allocated, PodDevices()))
        self.rewritten.set()
        if (self.holds, self.blind) != before:
            self.changed.set()

    async def look(self) -> PodDevices:
        """At all there is. Returns the kubelet's list of pods, empty while there is none."""
        await self.read()
        self.rewritten.clear()
        checkpoint = self._checkpoint
        listed = await self._resources.list()
        if listed is None:
            self.settled = True
            return PodDevices()
        whole = self._pods.current and is_whole(listed, self._pods, self._own_pod) and not checkpoint.unreadable
        over = await self._over(checkpoint, listed) if whole else frozenset[str]()
        # Of a file that was written meanwhile nothing has been judged.
        self._judge(listed, over, counts=whole and checkpoint is self._checkpoint)
        return listed

    async def _over(self, checkpoint: DeviceCheckpoint, listed: PodDevices) -> frozenset[str]:
        """Pods of the checkpoint that have ended for sure: known to nobody as active, and without any process."""
        found = suspects(checkpoint.allocated, listed, self._pods) - self._ended
        if not found:
            return self._ended
        look = await self._processes.look(found, ())
        return self._ended if look.blind else self._ended | (found - look.alive.keys())

    def _judge(self, listed: PodDevices, over: frozenset[str], *, counts: bool) -> None:
        before = self.holds
        if counts:
            self._ended |= over & self._missed
            self._missed = over
        gone = over if counts else self._ended
        seen = self._seen((entry for entry in self._checkpoint.allocated if entry.pod_uid not in gone), listed)
        if counts:
            self._holds.look(seen)
        else:
            self._holds.see(seen)
        used = frozenset[str]().union(*(use.devices for use in listed.used))
        self.settled = not self._holds.doubtful and (counts or self.holds.keys() <= used)
        if self.holds != before:
            self.changed.set()

    def _seen(self, allocated: Iterable[Allocated], listed: PodDevices) -> dict[str, ClassicHold]:
        found: dict[str, ClassicHold] = {}

        def add(devices: Iterable[str], resource: str, uid: str, name: str) -> None:
            for device in devices:
                pods = {**(found[device].pods if device in found else {}), uid or name: name}
                found[device] = ClassicHold(resource, pods)

        for entry in allocated:
            add(entry.devices, entry.resource, entry.pod_uid, names(self._pods, entry.pod_uid))
        known = uids(self._pods)
        for use in listed.used:
            add(use.devices, use.resource, known.get(use.pod, ""), "/".join(use.pod))
        return found
