"""A node whose agent is cut off at a crash point, what befalls it then, and how one tells that nothing was lost.

One pod, the subject, has all GPUs of the node. A case begins and ends with a subject that runs and nothing else that
is the driver's, so that each new subject proves that every GPU could be claimed again after the cases before.
"""

import contextlib
import functools
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.cdi.driver import DRIVER_FILE
from kubeletplugin.dra.sockets import registry_dir
from kubeletplugin.ledger import files
from kubeletplugin.prepare.kubelet_state import KubeletStateFile
from tests.cluster.cgroups import processes
from tests.cluster.crash_agents import PLUGIN, CrashingAgent, agent_of
from tests.cluster.crashing_agent import DEVICES_PER_SLICE
from tests.cluster.harness.kubectl import KubectlError
from tests.cluster.harness.node import KUBELET_ROOT, RealNode
from tests.cluster.harness.processes import until
from tests.cluster.leftovers import wait_for_none
from tests.cluster.objects import claim_spec, container, pod, request, template
from tests.cluster.test_burst import GPUS
from tests.cluster.watcher import Watcher, watching
from tests.cluster.world import World

CDI = Path("/var/run/cdi")
REGISTRY = registry_dir(KUBELET_ROOT)
LEDGER = PLUGIN / "ledger.db"
STATE = KubeletStateFile(KUBELET_ROOT).path
ALL = "all"
QUICK = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
_OF_CLAIMS = re.compile(r"DRA|claim|plugin", re.IGNORECASE)
SECONDS = 60.0
"""Above the kubelet's pace of 15 s for an Unprepare that failed, and of a plugin's registration after a restart."""


@dataclass(slots=True)
class Rig:
    """``agent`` is the one that serves, and is cut off; ``spare`` the other instance. ``subject`` is the pod that has
    the GPUs, or should get them; empty when none should. ``second`` should run beside it, ``leaving`` should go.
    ``lingers``: the kubelet would list a claim for up to a minute for a pod that it never sees again. ``cuts``
    are the points at which this case has cut the agent off, ``figures`` its counts (see ``count``), ``faults`` what the
    judge found; None where it didn't get to that."""

    node: RealNode
    world: World
    agent: CrashingAgent
    spare: CrashingAgent
    rng: random.Random
    watcher: Watcher
    subject: str = ""
    second: str = ""
    leaving: str = ""
    lingers: bool = False
    number: int = 0
    played: int = 0
    cuts: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    faults: list[str] | None = None
    counted: int = 0
    sources: dict[str, str] = field(default_factory=dict)

    # --- pods ---
    def begin(self) -> None:
        self.world.begin()
        self.world.create(template(ALL, claim_spec(request(count=GPUS))))

    def emptied(self) -> list[str]:
        """What is there still when all pods are gone."""
        self.recover()
        for path in PLUGIN.glob("*.damaged-*"):
            path.unlink()
        return wait_for_none()

    def end(self) -> None:
        left = self.emptied()
        self.world.end()
        self.agent.stop()
        assert left == [], "the cases leave something behind"

    def create(self, *, command: str = QUICK, template_name: str = "", claim_name: str = "") -> str:
        """A pod, by default for all GPUs and then one of those that must never run together; returns its name."""
        self.number += 1
        name = f"p{self.number}"
        self.sources[name] = claim_name or template_name or ALL
        self.world.create(
            pod(
                name,
                claim_name=claim_name,
                template_name=template_name or ALL,
                containers=[container(command=command)],
            )
        )
        if self.sources[name] == ALL:
            self.watcher.add(self.world, name)
        return name

    def delete(self, *names: str, force: bool = False) -> None:
        if names:
            self.world.delete(*(f"pod/{name}" for name in names), force=force, wait=False)

    def pods(self) -> dict[str, dict[str, Any]]:
        return {item["metadata"]["name"]: item for item in self.world.kubectl.items("pods", "-n", self.world.namespace)}

    def nudge(self) -> None:
        """Touches every pod that isn't as it should be: the kubelet tries a failed Prepare again a minute later."""
        for name, found in self.pods().items():
            if not _is_ready(found) or "deletionTimestamp" in found["metadata"]:
                with contextlib.suppress(KubectlError):
                    label = f"woken={time.monotonic_ns()}"
                    self.world.kubectl.run("label", "pod", name, "-n", self.world.namespace, "--overwrite", label)

    def until(self, what: str, check: Callable[[], object], seconds: float = SECONDS) -> None:
        """Waits, touching pods every second."""
        end, next_nudge = time.monotonic() + seconds, time.monotonic() + 1
        while not check():
            now = time.monotonic()
            if now > end:
                raise TimeoutError(f"{what}: not within {seconds:g} s; agent says {self.agent.answer()}")
            if now > next_nudge:
                self.nudge()
                next_nudge = time.monotonic() + 1
            time.sleep(0.1)

    def wait_running(self, *names: str) -> None:
        self.until(f"pods {names} running", lambda: all(_is_ready(self.pods().get(name, {})) for name in names))

    def wait_gone(self, *names: str) -> None:
        self.until(f"pods {names} gone", lambda: not self.pods().keys() & set(names))

    def renew(self) -> None:
        """Another subject in the place of all pods of this case; it waits for the GPUs at first."""
        old = [name for name in (self.subject, self.second, self.leaving) if name]
        self.second = self.leaving = ""
        self.subject = self.create()
        if old:
            self.delete(*old)
            self.wait_gone(*old)
        self.wait_running(self.subject)

    # --- the agent ---
    def stop_at(self, point: str, work: Callable[[], object]) -> None:
        """Does ``work``, in which the agent gets to ``point``, and returns when it stands still there."""
        self.agent.arm(point)
        work()
        self.until(f"the agent at {point}", self.agent.stands_still, 30)
        self.cuts.append(point)

    def start(self) -> None:
        """The agent that was cut off, which isn't waited for."""
        self.agent.start(ready=False, same_pod=True)

    def restart(self, *, ready: bool = True) -> None:
        self.agent.kill()
        self.agent.disarm()
        self.agent.start(ready=ready, same_pod=True)

    def swap(self) -> None:
        self.agent, self.spare = self.spare, self.agent

    # --- the node ---
    def stop_kubelet(self) -> None:
        self.node.supervisor.stop("kubelet", hard=True)

    def kill_containers(self) -> None:
        """All processes of pods; with the kubelet away nobody starts them again."""

        def none_left() -> bool:
            pids = [pid for _, pid in processes()]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        until("the end of all containers", 10, none_left)

    def lose_list(self) -> None:
        """All pods go by force while the kubelet is away, and its list with them: no Unprepare will come."""
        self.lingers = False
        names = list(self.pods())
        self.delete(*names, force=True)
        self.wait_gone(*names)
        self.stop_kubelet()
        self.kill_containers()
        STATE.unlink(missing_ok=True)
        self.node.start_kubelet()
        self.subject = self.second = ""

    def reboot(self) -> None:
        for agent in (self.agent, self.spare):
            agent.kill()
            agent.disarm()
        self.stop_kubelet()
        self.kill_containers()
        for path in CDI.iterdir():
            path.unlink()
        self.agent.gpus().reboot()
        start_agent = functools.partial(self.agent.start, ready=False, same_pod=True)
        starts: list[Callable[[], None]] = [self.node.start_kubelet, start_agent]
        self.rng.shuffle(starts)
        for start in starts:
            start()
        self.agent.wait_ready(SECONDS)

    # --- the judge ---
    def seen_by(self, name: str) -> set[str]:
        """GPU nodes in its container; after a reboot the pod may still be shown as ready while it isn't there."""
        seen: list[set[str]] = []

        def look() -> bool:
            with contextlib.suppress(KubectlError):
                seen.append(self.world.gpu_nodes(name))
            return bool(seen)

        self.until(f"a look into {name}", look)
        return seen[-1]

    def judge(self) -> None:
        """The subject has all GPUs, and there is nothing else; raises AssertionError."""
        seen = self.seen_by(self.subject)
        assert seen == {f"nvidia{index}" for index in range(GPUS)}, f"{self.subject} sees {seen}"
        uid = self.world.claim_of(self.subject)["metadata"]["uid"]

        def in_order() -> bool:
            self.faults = [*self._ledger_faults(uid), *self._file_faults(uid), *self._slice_faults()]
            return not self.faults

        with contextlib.suppress(TimeoutError):
            self.until("everything in order", in_order, 20)
        assert not self.faults, "; ".join(self.faults)
        assert not self.doubles(), self.doubles()
        self.watcher.forget(but=self.pods()[self.subject]["metadata"]["uid"])

    def doubles(self) -> list[str]:
        """What the watcher has seen since the last count."""
        return self.watcher.doubles[self.counted :]

    def count(self) -> None:
        """Takes down this case's figures, as far as it has got: pods that should run and don't are lost."""
        self.figures = {"double_holds": len(self.doubles())}
        self.counted = len(self.watcher.doubles)
        if self.faults is not None:
            self.figures["leftovers"] = len(self.faults)
        with contextlib.suppress(KubectlError):
            pods, wanted = self.pods(), set(filter(None, (self.subject, self.second)))
            self.figures["lost_claims"] = len([name for name in wanted if not _is_ready(pods.get(name, {}))])

    def _ledger_faults(self, uid: str) -> list[str]:
        answer, snapshot = self.agent.answer(), files.read_snapshot(LEDGER)
        states = {device["name"]: device["state"] for device in answer.get("devices", ())}
        holders = [(hold.device.name, hold.holder.id, hold.state.value) for hold in snapshot.holds]
        listed = KubeletStateFile(KUBELET_ROOT).read().claims.keys()
        faults = {
            "states": states != {f"gpu-{index}": "held" for index in range(GPUS)},
            "holds": sorted(holders) != [(f"gpu-{index}", uid, "held") for index in range(GPUS)],
            "claims": [record.uid for record in snapshot.claims] != [uid],
            "intents": bool(snapshot.intents),
            "waiting": answer.get("waiting") != [],
            "kubelet": listed != {uid},
        }
        shown = {"states": states, "holds": holders, "waiting": answer.get("waiting"), "kubelet": sorted(listed)}
        return [f"{name}: {shown.get(name, snapshot)}" for name, wrong in faults.items() if wrong]

    def _file_faults(self, uid: str) -> list[str]:
        found = {path.name for path in CDI.iterdir() if DRIVER_NAME in path.name}
        wanted = {DRIVER_FILE, f"k8s.gpu.nvidia.com-claim_{uid}.json"}
        sockets = {path.name for path in (*PLUGIN.glob("*.sock*"), *REGISTRY.glob("*.sock*"))}
        sockets |= {path.name for path in REGISTRY.glob(".*.sock*")}
        own = {name for name in sockets if self.agent.uid in name}
        temporary = [path.name for path in PLUGIN.iterdir() if "tmp" in path.name]
        faults = [f"CDI files {sorted(found)}"] if found != wanted else []
        faults += [f"sockets of others: {sorted(sockets - own)}"] if sockets != own else []
        faults += [f"{len(own)} sockets of its own, not 3: {sorted(own)}"] if len(own) != 3 else []
        return faults + [f"temporary file {name}" for name in temporary]

    def _slice_faults(self) -> list[str]:
        specs = [item["spec"] for item in self.agent.slices(self.world.kubectl)]
        sizes = sorted(len(spec.get("devices", ())) for spec in specs)
        generations = {spec["pool"]["generation"] for spec in specs}
        counts = {spec["pool"]["resourceSliceCount"] for spec in specs}
        wanted = sorted([DEVICES_PER_SLICE, GPUS - DEVICES_PER_SLICE])
        if sizes == wanted and len(generations) == 1 and counts == {len(wanted)}:
            return []
        return [f"slices of {sizes} devices, generations {generations}, counts {counts}"]

    # --- between cases ---
    def settle(self) -> None:
        """What should run runs, what should go has gone; then one subject has all GPUs, and nothing else is left."""
        if self.leaving:
            self.wait_gone(self.leaving)
            self.leaving = ""
        self.wait_running(*filter(None, (self.subject, self.second)))
        if self.second:
            self.judge_second()
        if self.second or not self.subject or self.sources[self.subject] != ALL:
            if self.lingers:
                self.lose_list()
            self.renew()
        self.judge()

    def judge_second(self) -> None:
        """Of one claim they see the same GPU, else each another."""
        first, second = self.seen_by(self.subject), self.seen_by(self.second)
        same = self.sources[self.subject] == self.sources[self.second]
        assert first and second and (first == second if same else not first & second), f"{first} and {second}"

    def calm(self) -> None:
        """Whatever the last case left: one agent that serves, one subject that runs."""
        self.cuts.clear()
        self.figures, self.faults = {}, None
        self.agent.disarm()
        self.spare.kill()
        self.node.start_kubelet()
        if self.agent.pid is None or self.agent.stands_still():
            self.restart(ready=False)
        self.agent.wait_ready(SECONDS)
        if not self.subject or not _is_ready(self.pods().get(self.subject, {})):
            self.renew()

    def describe(self) -> str:
        logs = [self.node.supervisor.tail(name, 60) for name in (self.agent.name, self.spare.name)]
        kubelet = [line for line in self.node.supervisor.tail("kubelet", 400).splitlines() if _OF_CLAIMS.search(line)]
        return "\n\n".join([self.world.describe(), *logs, "\n".join(kubelet[-30:])])

    def recover(self) -> None:
        """After a failed case: nothing of it is left to the next one."""
        self.subject = self.second = self.leaving = ""
        self.lingers = False
        for agent in (self.agent, self.spare):
            agent.kill()
            agent.disarm()
        self.agent.gpus().clear_faults()
        for index in range(GPUS):
            self.agent.gpus().restore_gpu(index)
            self.agent.gpus().set_processes(index, [])
        self.node.start_kubelet()
        self.agent.start(same_pod=True)
        names = self.pods().keys()
        self.delete(*names, force=True)
        self.until("the kubelet has let go", lambda: not KubeletStateFile(KUBELET_ROOT).read().claims)
        self.watcher.forget()


def _is_ready(found: dict[str, Any]) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


@contextlib.contextmanager
def rigged(node: RealNode, seed: int) -> Iterator[Rig]:
    """The node with agents of our own in the place of the one that other cases share, which starts again after."""
    node.supervisor.stop("agent", 15)
    with watching() as watcher:
        rig = Rig(
            node=node,
            world=World(node.kubectl(), "crashes"),
            agent=agent_of(node, "crashing-a"),
            spare=agent_of(node, "crashing-b"),
            rng=random.Random(seed),
            watcher=watcher,
        )
        rig.begin()
        try:
            yield rig
        finally:
            rig.end()
