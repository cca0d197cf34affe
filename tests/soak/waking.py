"""Pods whose Prepare failed are tried again by the kubelet a minute later, at once when the pod object changes.

A soak can't wait that long each time. What failed is kept, so that a case can say whose fault it was.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.cluster.harness.kubectl import KubectlError
from tests.cluster.world import FAILED, KUBELETS_OWN, World


@dataclass(slots=True)
class Failures:
    """``messages`` are those of one namespace's pods that weren't the kubelet's own, ``kubelets`` how many were."""

    world: World
    messages: Counter[str] = field(default_factory=Counter)
    kubelets: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def collect(self, *, wake: bool = True) -> None:
        """What is new since the last time; the pods that it is about are touched."""
        kubectl, namespace = self.world.kubectl, self.world.namespace
        for event in kubectl.items("events", "-n", namespace, "--field-selector", f"reason={FAILED}"):
            key = (event["metadata"]["name"], event.get("count", 1))
            if key in self._seen:
                continue
            self._seen.add(key)
            if KUBELETS_OWN.search(event["message"]):
                self.kubelets += 1
            else:
                self.messages[event["message"]] += 1
            if wake:
                self._touch(event["involvedObject"]["name"])

    def _touch(self, pod: str) -> None:
        arguments = ("label", "pod", pod, "-n", self.world.namespace, "--overwrite", f"woken={len(self._seen)}")
        try:
            self.world.kubectl.run(*arguments)
        except KubectlError as error:
            if "NotFound" not in str(error):
                raise
