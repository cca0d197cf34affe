"""What failed of one namespace's pods, told apart by whose fault it was. The agent wakes them."""

from collections import Counter
from dataclasses import dataclass, field

from tests.cluster.world import FAILED, KUBELETS_OWN, World


@dataclass(slots=True)
class Failures:
    """``messages`` are those of one namespace's pods that weren't the kubelet's own, ``kubelets`` how many were."""

    world: World
    messages: Counter[str] = field(default_factory=Counter)
    kubelets: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def collect(self) -> None:
        """What is new since the last time."""
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
