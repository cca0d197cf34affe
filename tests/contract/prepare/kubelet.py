"""A kubelet with a container runtime, reduced to what decides who gets a GPU, one step at a time.

As measured on real ones: the claim is checkpointed before Prepare; a prepared flag in memory saves later calls;
answered ids are appended; sandbox, CDI lookup and process start are three steps; Unprepare follows the last process,
except from the reconcile loop, which doesn't look; a restart forgets the flags and keeps the checkpoint.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from kubeletplugin.prepare.kubelet_state import KubeletClaim
from kubeletplugin.prepare.model import ClaimRef, PrepareResult
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import PREFIX, World


@dataclass(eq=False)
class Pod:
    """``state``: new, calling, ready, sandbox, resolved, running, ended, unpreparing, done or failed."""

    name: str
    ref: ClaimRef
    state: str = "new"
    deleted: bool = False
    got: set[str] = field(default_factory=set)


class Kubelet:
    RECONCILED = ("ready", "sandbox", "resolved", "running")
    """States of a deleted pod in which the reconcile loop may drop its claims before its processes have ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pods: list[Pod] = []
        self.prepared: set[str] = set()
        self.unpreparing: set[str] = set()
        self.flawed = False
        """The kubelet itself was wrong (docs/protocol): a pod may be stuck, which isn't the agent's fault."""
        self._life = 0
        self._pid = 100

    def step(self, agent: Agent, pod: Pod) -> None:
        """The next thing that happens to ``pod``, if anything does."""
        if pod.deleted and pod.state in ("new", "failed", "ready", "sandbox", "resolved", "running", "calling"):
            pod.state = "ended"
            self._drop_processes(pod)
        elif pod.state in ("new", "failed"):
            self._begin(agent, pod)
        elif pod.state == "ready":
            pod.state = "sandbox"
            self._pid += 1
            self.world.processes[pod.name] = {self._pid}
        elif pod.state == "sandbox":
            self._resolve(pod)
        elif pod.state == "resolved":
            pod.state = "running"
            for gpu in pod.got:
                on_it = self.world.on_device.setdefault(gpu, {})
                on_it[pod.name] = frozenset(self.world.processes[pod.name])
        elif pod.state == "ended":
            self._end(agent, pod)

    def restart(self) -> None:
        self._life += 1
        self.prepared.clear()
        self.unpreparing.clear()
        for pod in self.pods:
            pod.state = {"calling": "new", "ready": "new", "failed": "new", "unpreparing": "ended"}.get(
                pod.state, pod.state
            )

    def reboot(self) -> None:
        """Nothing runs any more; what is on disk stays."""
        self.restart()
        for pod in self.pods:
            self._drop_processes(pod)
            if pod.state in ("sandbox", "resolved", "running"):
                pod.state = "new"

    def reconcile(self, agent: Agent, pod: Pod) -> None:
        """The loop that drops deleted pods' claims whatever their processes do."""
        known = self.world.kubelet.get(pod.ref.uid)
        dying = pod.deleted and pod.state in self.RECONCILED
        if not dying or known is None or pod.name not in known.pods or pod.ref.uid in self.unpreparing:
            return
        if known.pods == {pod.name}:
            self._unprepare(agent, pod)
        else:
            self._set_pods(pod.ref, known.pods - {pod.name})

    def agent_lost(self) -> None:
        """Calls under way end with their connection."""
        self.unpreparing.clear()
        for pod in self.pods:
            pod.state = {"calling": "failed", "unpreparing": "ended"}.get(pod.state, pod.state)

    # --- inside ---
    def _drop_processes(self, pod: Pod) -> None:
        pod.got = set()
        self.world.processes.pop(pod.name, None)
        for pids in self.world.on_device.values():
            pids.pop(pod.name, None)

    def _begin(self, agent: Agent, pod: Pod) -> None:
        claim = self.world.claims.get((pod.ref.namespace, pod.ref.name), {"status": {}})
        reserved = {consumer["uid"] for consumer in claim["status"].get("reservedFor", ())}
        if pod.name not in reserved:
            return
        known = self.world.kubelet.get(pod.ref.uid)
        self._set_pods(pod.ref, (known.pods if known else frozenset()) | {pod.name})
        if pod.ref.uid not in self.prepared:
            pod.state = "calling"
            life = self._life
            call = agent.begin(agent.prepare_one(pod.ref))
            call.add_done_callback(lambda task: self._answered(pod, task, life))
            return
        pod.state = "ready"
        allocated = {result["device"] for result in claim["status"]["allocation"]["devices"]["results"]}
        ids = {name.removeprefix(f"{pod.ref.uid}-") for name in self.world.kubelet[pod.ref.uid].cdi_names}
        self.flawed = self.flawed or pod.ref.uid in self.unpreparing or ids != allocated

    def _answered(self, pod: Pod, task: "asyncio.Task[PrepareResult]", life: int) -> None:
        if life != self._life or pod.state != "calling":
            return
        if task.cancelled() or task.exception() or task.result().error:
            pod.state = "failed"
            return
        pod.state = "ready"
        self.prepared.add(pod.ref.uid)
        known = self.world.kubelet[pod.ref.uid]
        new = [device.cdi_device_ids[0].removeprefix(PREFIX) for device in task.result().devices]
        names = tuple(dict.fromkeys((*known.cdi_names, *new)))
        self.world.kubelet[pod.ref.uid] = KubeletClaim(known.uid, known.namespace, known.name, known.pods, names)

    def _resolve(self, pod: Pod) -> None:
        known = self.world.kubelet.get(pod.ref.uid)
        file = self.world.files.get(pod.ref.uid)
        if known is None or pod.name not in known.pods or not known.cdi_names or file is None:
            return
        if not set(known.cdi_names) <= set(file.devices):
            return
        assert file.boot == self.world.boot_id, f"{pod.name} starts with a file of before the reboot"
        pod.got = {file.devices[name] for name in known.cdi_names if file.devices[name]}
        pod.state = "resolved"

    def _end(self, agent: Agent, pod: Pod) -> None:
        known = self.world.kubelet.get(pod.ref.uid)
        if known is None or pod.name not in known.pods:
            pod.state = "done"
        elif known.pods != {pod.name}:
            self._set_pods(pod.ref, known.pods - {pod.name})
            pod.state = "done"
        elif pod.ref.uid not in self.unpreparing:
            pod.state = "unpreparing"
            self._unprepare(agent, pod)

    def _unprepare(self, agent: Agent, pod: Pod) -> None:
        self.unpreparing.add(pod.ref.uid)
        life = self._life
        call = agent.begin(agent.unprepare(pod.ref))
        call.add_done_callback(lambda task: self._unprepared(pod, task, life))

    def _unprepared(self, pod: Pod, task: "asyncio.Task[Any]", life: int) -> None:
        if life != self._life or pod.ref.uid not in self.unpreparing:
            return
        self.unpreparing.discard(pod.ref.uid)
        if pod.state == "unpreparing":
            pod.state = "ended"
        if task.cancelled() or task.exception() or task.result():
            return
        known = self.world.kubelet.pop(pod.ref.uid, None)
        self.prepared.discard(pod.ref.uid)
        joined = known.pods if known else frozenset()
        self.flawed = self.flawed or any(other.name in joined and not other.deleted for other in self.pods)

    def _set_pods(self, ref: ClaimRef, pods: frozenset[str]) -> None:
        known = self.world.kubelet.get(ref.uid)
        names = known.cdi_names if known else ()
        self.world.kubelet[ref.uid] = KubeletClaim(ref.uid, ref.namespace, ref.name, pods, names)
