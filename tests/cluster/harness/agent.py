"""The agent under test: a process on the node with the rights of deploy/, never more.

It runs on a token bound to a pod of its ServiceAccount on its node, as the token of a DaemonSet's pod is, so that the
admission policy and the node-bound verbs bite as they do in production.
"""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from kubeletplugin.nvml.simulated import SimulatedNode
from tests.cluster.harness import images
from tests.cluster.harness.kubectl import Json, Kubectl
from tests.cluster.harness.node import RealNode
from tests.cluster.harness.pki import Pki
from tests.cluster.harness.processes import until

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
NAMESPACE = "gpuclaim"
SERVICE_ACCOUNT = "gpuclaim-kubeletplugin"


def bound_kubeconfig(node: RealNode, pod: str, path: Path) -> str:
    """A kubeconfig on a token bound to a pod that is made for it; returns the pod's UID."""
    kubectl = node.kubectl()
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod, "namespace": NAMESPACE},
            "spec": {
                "nodeName": node.name,
                "serviceAccountName": SERVICE_ACCOUNT,
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "pause", "image": images.PAUSE}],
            },
        }
    )
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}", "--duration=2h")
    token = kubectl.run("create", "token", SERVICE_ACCOUNT, "-n", NAMESPACE, *bound).strip()
    Pki(node.layout.pki).kubeconfig(path, token=token)
    uid: str = kubectl.json("get", "pod", pod, "-n", NAMESPACE)["metadata"]["uid"]
    return uid


def install(kubectl: Kubectl) -> None:
    """Rights and policy as deploy/ ships them."""
    for manifest in sorted((DEPLOY / "manifests").glob("*.yaml")):
        kubectl.run("apply", "-f", str(manifest))
    ready = f"get serviceaccount {SERVICE_ACCOUNT} -n {NAMESPACE}".split()
    until("the agent's service account", 10, lambda: kubectl.get(*ready[1:]))


@dataclass(slots=True)
class Agent:
    """One agent process and the simulated machine under it."""

    node: RealNode
    machine: str = "dgx-h100"
    name: str = "agent"
    flags: tuple[str, ...] = ()
    entry: tuple[str, ...] = ("gpuclaim", "kubeletplugin")
    state: Path = field(init=False)
    uid: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.state = self.node.layout.root / "machines" / f"{self.machine}.json"

    @property
    def log(self) -> str:
        return self.node.supervisor.log(self.name).read_text(errors="replace")

    def gpus(self) -> SimulatedNode:
        """A hand on the simulated hardware."""
        return SimulatedNode(self.state)

    def start(self, *, ready: bool = True, same_pod: bool = False) -> None:
        """With ``same_pod`` as the restarted container of the pod that it had before, if it had one."""
        kubeconfig = self.node.layout.config / f"{self.name}.conf"
        self.state.parent.mkdir(parents=True, exist_ok=True)
        uid = self.uid if same_pod else ""
        uid = uid or bound_kubeconfig(self.node, f"{self.name}-{uuid.uuid4().hex[:6]}", kubeconfig)
        command = [
            *(sys.executable, "-m", *self.entry, "--node-name", self.node.name, "--pod-uid", uid),
            *("--kubeconfig", str(kubeconfig), "--machine", self.machine, "--machine-state", str(self.state)),
            *("--rescan-interval", "1", "--log-level", "debug", *self.flags),
        ]
        self.uid = uid
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.node.supervisor.start(self.name, command, environment | {"PYTHONFAULTHANDLER": "1"})
        if ready:
            self.wait_ready()

    def wait_ready(self, seconds: float = 30) -> None:
        """Until this instance is registered, active, and its slices are accepted."""
        self.node.supervisor.wait(self.name, "the agent ready", seconds, self._ready)

    def _ready(self) -> bool:
        try:
            found = json.loads(self.status())
        except (subprocess.CalledProcessError, ValueError):
            return False
        return found.get("instance") == self.uid and found.get("ready") is True

    def slices(self, kubectl: Kubectl) -> list[Json]:
        return kubectl.items("resourceslices", "--field-selector", "spec.driver=gpu.nvidia.com")

    def status(self, form: str = "json") -> str:
        """What `gpuclaim status` prints, through the agent's socket."""
        command = [sys.executable, "-m", "gpuclaim", "status", "-o", form]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    def stop(self) -> None:
        self.node.supervisor.stop(self.name, 15)

    def kill(self) -> None:
        self.node.supervisor.stop(self.name, hard=True)

    @property
    def pid(self) -> int | None:
        return self.node.supervisor.pid(self.name)
