"""Whatever people, kubelet, and crashes do: no GPU is held by, or open to start for, two claims, and once calm
nothing is lost: every pod that should run does, with its claim's row and file, and everything that should be free is.

Prepare, Unprepare, forced deletes, kubelet restarts, its reconcile loop, agent crashes at any step, take-overs with and
without the old one's yielding, reboots, and times in which API server, NVML, cgroups, the kubelet's list or the disk
can't be had, in any order, over one claim that many pods share and that moves between GPUs, and claims used once.
GPUCLAIM_SOAK=1 runs many more of them, each time others.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubeapi import errors as api_errors
from kubeletplugin.errors import RecoverableError
from kubeletplugin.prepare.model import ClaimRef
from tests.contract.prepare.kubelet import Kubelet, Pod
from tests.contract.prepare.node import Agent
from tests.contract.prepare.virtual import VirtualLoop
from tests.contract.prepare.world import World

GPUS = 2
SHARED = ClaimRef("uid-shared", "ns", "shared")
CALM_ROUNDS = 120


def _pick(pods: list[Pod], index: int) -> Pod:
    return pods[index % len(pods)]


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = VirtualLoop()
        self.world = World(Path(self.folder.name), gpus=GPUS)
        self.kubelet = Kubelet(self.world)
        self.agent = self.run(Agent(self.world).start())
        self.restarts = 0
        self.passed_by: list[Agent] = []
        self.failing = False

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    # --- scheduler and people ---
    def allocated(self, but: str = "") -> set[str]:
        return {
            result["device"]
            for (_, name), claim in self.world.claims.items()
            for result in claim["status"].get("allocation", {"devices": {"results": ()}})["devices"]["results"]
            if name != but
        }

    @rule(gpu=st.integers(0, GPUS - 1), once=st.booleans())
    def bind(self, gpu: int, once: bool) -> None:
        """A pod is bound, its claim allocated where it isn't yet."""
        self.bind_to(f"gpu-{gpu}", once)

    @rule(gpu=st.integers(0, GPUS - 1), once=st.booleans(), steps=st.integers(2, 5))
    def bind_and_start(self, gpu: int, once: bool, steps: int) -> None:
        before = len(self.kubelet.pods)
        self.bind_to(f"gpu-{gpu}", once)
        if len(self.kubelet.pods) > before:
            self.guarded(self.steps_of(self.kubelet.pods[-1], steps, 0.05))

    def bind_to(self, device: str, once: bool) -> None:
        number = len(self.kubelet.pods)
        name = f"pod-{number}"
        ref = ClaimRef(f"uid-once{number}", "ns", f"once{number}") if once else SHARED
        claim = self.world.claims.get((ref.namespace, ref.name))
        if claim is not None and claim["status"].get("allocation"):
            pods = [consumer["uid"] for consumer in claim["status"]["reservedFor"]]
            self.world.reserve(ref, *pods, name)
        elif device not in self.allocated():
            self.world.allocate(ref.name, device, pods=[name])
        else:
            return
        self.kubelet.pods.append(Pod(name, ref))
        self.watch(ref)

    @precondition(lambda self: self.living())
    @rule(index=st.integers(0, 20))
    def force_delete(self, index: int) -> None:
        self.delete(_pick(self.living(), index))

    @precondition(lambda self: self.living())
    @rule(index=st.integers(0, 20), once=st.booleans(), steps=st.integers(0, 3))
    def replace(self, index: int, once: bool, steps: int) -> None:
        """A forced delete, and at once another pod on the same GPU, as a waiting one gets it."""
        pod = _pick(self.living(), index)
        gpus = self.world.claims[pod.ref.namespace, pod.ref.name]["status"]["allocation"]["devices"]["results"]
        self.delete(pod)
        before = len(self.kubelet.pods)
        self.bind_to(gpus[0]["device"], once)
        if len(self.kubelet.pods) > before:
            self.guarded(self.steps_of(self.kubelet.pods[-1], steps, 0.02))

    def living(self) -> list[Pod]:
        return [pod for pod in self.kubelet.pods if not pod.deleted]

    def delete(self, pod: Pod) -> None:
        pod.deleted = True
        claim = self.world.claims[pod.ref.namespace, pod.ref.name]
        left = [one["uid"] for one in claim["status"].get("reservedFor", ()) if one["uid"] != pod.name]
        if left:
            self.world.reserve(pod.ref, *left)
        elif pod.ref == SHARED:
            self.world.deallocate(pod.ref)
        else:
            self.world.delete(pod.ref)
        self.watch(pod.ref)

    def watch(self, ref: ClaimRef) -> None:
        claim = self.world.claims.get((ref.namespace, ref.name))

        async def tell() -> None:
            if claim is not None:
                self.agent.manager.observe_claim(claim)

        self.run(tell())

    # --- the kubelet ---
    def unfinished(self) -> list[Pod]:
        settled = {False: "running", True: "done"}
        return [pod for pod in self.kubelet.pods if pod.state != settled[pod.deleted]]

    @precondition(lambda self: self.unfinished())
    @rule(index=st.integers(0, 20), steps=st.integers(1, 6), milliseconds=st.sampled_from([0, 1, 2, 5, 20]))
    def kubelet_steps(self, index: int, steps: int, milliseconds: int) -> None:
        self.guarded(self.steps_of(_pick(self.unfinished(), index), steps, milliseconds / 1000))

    @precondition(lambda self: self.unfinished())
    @rule(rounds=st.integers(1, 5), milliseconds=st.sampled_from([2, 20, 2000]))
    def kubelet_works(self, rounds: int, milliseconds: int) -> None:
        async def work() -> None:
            for _ in range(rounds):
                for pod in self.kubelet.pods:
                    await self.steps_of(pod, 1, 0.0)
                await asyncio.sleep(milliseconds / 1000)

        self.guarded(work())

    async def steps_of(self, pod: Pod, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.kubelet.step(self.agent, pod)
            await self.agent.manager.observe_kubelet()
            await asyncio.sleep(seconds)

    def dying(self) -> list[Pod]:
        return [pod for pod in self.kubelet.pods if pod.deleted and pod.state in Kubelet.RECONCILED]

    @rule(index=st.integers(0, 20), restarts=st.booleans())
    def kubelet_restarts_or_reconciles(self, index: int, restarts: bool) -> None:
        async def work() -> None:
            self.kubelet.reconcile(self.agent, _pick(self.dying(), index))
            await asyncio.sleep(0.02)

        if restarts:
            self.kubelet.restart()
        elif self.dying():
            self.guarded(work())

    # --- the agent ---
    @rule(what=st.sampled_from(["will die", "yields", "is passed by", "old one ends"]), steps=st.integers(0, 12))
    def agent_fault(self, what: str, steps: int) -> None:
        if what == "will die" and self.restarts < 4:
            self.restarts += 1
            self.agent.die_at(steps)
        elif what == "yields":
            self.guarded(self.next_agent(self.agent.stop))
        elif what == "is passed by" and len(self.passed_by) < 2:
            self.passed_by.append(self.agent)
            self.guarded(self.next_agent())
        elif what == "old one ends" and self.passed_by:
            self.run(self.passed_by.pop().crash())

    async def next_agent(self, end: Callable[[], Awaitable[None]] | None = None) -> None:
        """Without ``end`` this one works on: the bound of its yield has passed, or it was stopped."""
        if end is not None:
            await end()
        self.kubelet.agent_lost()
        self.agent = await Agent(self.world).start()

    # --- the machine ---
    @rule(keeps_files=st.booleans())
    def reboot(self, keeps_files: bool) -> None:
        async def work() -> None:
            await self.agent.crash()
            self.kubelet.agent_lost()
            self.kubelet.reboot()
            self.world.boot_id = f"boot-{int(self.world.boot_id.removeprefix('boot-')) + 1}"
            if not keeps_files:
                self.world.files.clear()
            self.agent = await Agent(self.world).start()

        self.run(work())

    @precondition(lambda self: not self.failing)
    @rule(what=st.sampled_from(["API server", "NVML", "cgroups", "kubelet's list", "disk", "ledger"]))
    def something_fails(self, what: str) -> None:
        self.failing = True
        if what == "API server":
            self.world.api_error = api_errors.ServerError(503, "ServiceUnavailable", "try again")
        elif what == "NVML":
            self.world.blind_devices = {f"GPU-{index}": "NVML doesn't answer" for index in range(GPUS)}
        elif what == "cgroups":
            self.world.blind = "no kubepods cgroup"
        elif what == "kubelet's list":
            self.world.kubelet_unreadable = "permission denied"
        elif what == "ledger":
            self.world.ledger_error = RecoverableError("write the ledger: no space left")
        else:
            self.world.write_error = RecoverableError("write CDI spec: no space left")

    @precondition(lambda self: self.failing)
    @rule()
    def all_works_again(self) -> None:
        self.failing = False
        self.world.api_error = self.world.write_error = self.world.ledger_error = None
        self.world.blind = self.world.kubelet_unreadable = ""
        self.world.blind_devices = {}

    @rule(seconds=st.sampled_from([0.001, 0.003, 0.01, 0.1, 1.0, 5.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.guarded(asyncio.sleep(seconds))

    def guarded(self, work: Any) -> None:
        """Does the work; an agent that died in it, or beside it, is started again."""

        async def whole() -> None:
            await asyncio.gather(asyncio.ensure_future(work), return_exceptions=True)
            while self.agent.dead:
                await self.agent.crash()
                self.kubelet.agent_lost()
                self.agent = await Agent(self.world).start()

        self.run(whole())

    # --- what must hold ---
    @invariant()
    def no_gpu_is_open_to_two_claims(self) -> None:
        for gpu in (f"GPU-{index}" for index in range(GPUS)):
            users = {pod.ref.uid for pod in self.kubelet.pods if gpu in pod.got}
            files = {uid for uid, file in self.world.files.items() if gpu in file.devices.values()}
            assert len(users | files) <= 1, f"{gpu}: used by {users}, open to {files}"

    @invariant()
    def every_file_has_its_row(self) -> None:
        if not self.agent.dead:
            recorded = {record.uid for record in self.run(self.agent.ledger.claims())}
            assert self.world.files.keys() <= recorded

    def teardown(self) -> None:
        try:
            self.time_passes(0.0)
            self.run(self.calm_down())
            self.nothing_is_lost()
        finally:
            for agent in (*self.passed_by, self.agent):
                self.run(agent.crash())
            self.loop.close()
            self.folder.cleanup()

    async def calm_down(self) -> None:
        """Nothing new happens; what is under way gets its time."""
        self.all_works_again()
        self.agent.die_at(10**9)
        for _ in range(CALM_ROUNDS):
            for pod in self.kubelet.pods:
                self.kubelet.step(self.agent, pod)
            await self.agent.manager.observe_kubelet()
            await asyncio.sleep(1)
            self.no_gpu_is_open_to_two_claims()

    def nothing_is_lost(self) -> None:
        holders = self.run(self.agent.holders())
        if not self.kubelet.flawed:
            stuck = {pod.name: pod.state for pod in self.kubelet.pods if not pod.deleted and pod.state != "running"}
            assert not stuck, f"{stuck}; held {holders}; files {self.world.files}"
            left = {pod.name: pod.state for pod in self.kubelet.pods if pod.deleted and pod.state != "done"}
            assert not left
        for pod in self.kubelet.pods:
            if pod.state == "running" and not self.kubelet.flawed:
                assert pod.got == self.world.gpu_of(pod.ref) != set()
        wanted = {name for (_, name), claim in self.world.claims.items() if claim["status"].get("allocation")}
        if not self.kubelet.flawed:
            assert {name for names in holders.values() for name in names} == wanted
        assert self.run(self.agent.draining()) == {}


TestNode = Node.TestCase
TestNode.settings = (
    settings(max_examples=3000, stateful_step_count=60)
    if os.environ.get("GPUCLAIM_SOAK")
    else settings(max_examples=150, stateful_step_count=40, derandomize=True)
)
