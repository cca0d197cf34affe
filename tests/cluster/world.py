"""What a case knows of its cluster: a namespace, pods and what they see, and which GPU each claim holds."""

import re
from dataclasses import dataclass
from typing import Any

from tests.cluster.harness.kubectl import Kubectl, KubectlError

Json = dict[str, Any]
DRIVER = "gpu.nvidia.com"
FAILED = "FailedPrepareDynamicResources"
KUBELETS_OWN = re.compile(r"no relationship found between node .* and this object")
"""The kubelet's own read of the claim was refused, since the node authorizer's graph lags behind the pod. It happens in
bursts under every driver, before the driver is called, and costs the pod 60-90 s unless something touches it, as the
agent does."""


@dataclass(slots=True)
class World:
    kubectl: Kubectl
    namespace: str

    def begin(self) -> None:
        self.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    def end(self) -> None:
        """Pods first: they need the driver to leave."""
        self.kubectl.delete(self.namespace, "pods", "--all", force=False, seconds=90)
        self.kubectl.run("delete", "namespace", self.namespace, "--wait=false")

    def create(self, *objects: Json) -> None:
        self.kubectl.create(*objects, namespace=self.namespace)

    def running(self, *pods: str, seconds: float = 40) -> None:
        """Waits until they are Ready. A pod that the node authorizer hit is woken by the agent (see KUBELETS_OWN)."""

        def ready() -> bool:
            found = {item["metadata"]["name"]: item for item in self.kubectl.items("pods", "-n", self.namespace)}
            return all(_ready(found.get(name)) for name in pods)

        self.kubectl.wait(f"pods {', '.join(pods)} of {self.namespace} ready", ready, seconds)

    def delete(self, *names: str, force: bool = False, wait: bool = True) -> None:
        self.kubectl.delete(self.namespace, *names, force=force, wait=wait)

    def exec(self, pod: str, *command: str, container: str = "") -> str:
        return self.kubectl.exec(self.namespace, pod, *command, container=container)

    def gpu_nodes(self, pod: str, container: str = "") -> set[str]:
        """``nvidia3`` and the like: the device nodes of GPUs that the container sees."""
        listing = self.exec(pod, "ls", "/dev", container=container).split()
        return {name for name in listing if re.fullmatch(r"nvidia\d+", name)}

    def environment(self, pod: str, container: str = "") -> dict[str, str]:
        lines = self.exec(pod, "env", container=container).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def claims(self) -> list[Json]:
        return self.kubectl.items("resourceclaims", "-n", self.namespace)

    def claim_of(self, pod: str) -> Json:
        """The claim that the pod's template made."""
        found = self.kubectl.json("get", "pod", pod, "-n", self.namespace)
        name = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        return self.kubectl.json("get", "resourceclaim", name, "-n", self.namespace)

    def devices_of(self, claim: Json) -> list[str]:
        """Our devices in its allocation, in order."""
        results = claim["status"]["allocation"]["devices"]["results"]
        return [result["device"] for result in results if result["driver"] == DRIVER]

    def devices(self) -> dict[str, Json]:
        """Every published device of ours by name."""
        slices = self.kubectl.items("resourceslices", "--field-selector", f"spec.driver={DRIVER}")
        return {device["name"]: device for piece in slices for device in piece["spec"].get("devices", [])}

    def attribute(self, device: str, name: str) -> object:
        value: Json = self.devices()[device]["attributes"][name]
        return next(iter(value.values()))

    def pending(self, pod: str) -> bool:
        return self.kubectl.phase(self.namespace, pod) == "Pending"

    def restarts(self, pod: str) -> int:
        """Of its first container."""
        found = self.kubectl.json("get", "pod", pod, "-n", self.namespace)
        count: int = found["status"]["containerStatuses"][0]["restartCount"]
        return count

    def events(self, name: str) -> list[str]:
        return self.kubectl.events(self.namespace, name)

    def describe(self) -> str:
        try:
            events = self.kubectl.run("get", "events", "-n", self.namespace, "--sort-by=.lastTimestamp")
            return events + self.kubectl.run("get", "pods,resourceclaims", "-n", self.namespace, "-o", "yaml")
        except KubectlError as error:
            return str(error)


def _ready(pod: Json | None) -> bool:
    conditions = (pod or {}).get("status", {}).get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
