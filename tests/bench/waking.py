"""50 pods at once on 50 simulated devices of a real node, with pods being woken and without: time to Running.

Without, some pods wait for the kubelet's resync (60 to 90 s), under every driver: its own read of their claims is
refused in a burst. ``python -m tests.bench.waking`` measures this alone.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.bench import servers
from tests.bench.report import Figures, Row, percentile
from tests.cluster.burst import Burst, partitions
from tests.cluster.conftest import EXTERNAL, apply_classes
from tests.cluster.harness import node as real
from tests.cluster.harness.agent import Agent, install
from tests.cluster.world import World

PODS = 50
LIMIT_SECONDS = 240.0
RESYNC_SECONDS = 60.0
"""Whose pod took longer waited for the kubelet's resync."""
WAYS = {"on": (), "off": ("--wake-pods=false",)}

ROWS: Sequence[Row] = tuple(
    row
    for way, words in (("on", "pods are woken"), ("off", "not woken"))
    for row in (
        Row(f"burst {way}", f"{PODS} pods at once, {words}: Running after, p50 / p90 / max, s"),
        Row(f"burst {way} waited", f"  pods that took over {RESYNC_SECONDS:.0f} s", goal=0 if way == "on" else None),
    )
)


def missing_requirement() -> str | None:
    if EXTERNAL:
        return "needs a node of its own, not the cluster of KUBECONFIG"
    if servers.cached_binaries() is None:
        return "no Kubernetes in the cache (make cluster-test builds it)"
    return real.missing_requirement() or (
        "a node of tests/cluster is running on this machine" if real.is_running() else None
    )


def section() -> tuple[str, Sequence[Row], Figures]:
    """Without figures where no node can be had."""
    if reason := missing_requirement():
        sys.stderr.write(f"bursts of pods aren't measured: {reason}\n")
        return "pods at once", ROWS, {}
    figures: Figures = {}
    with _node() as node:
        for way, flags in WAYS.items():
            seconds = _measure(node, way, flags)
            spread = (percentile(seconds, 0.5), percentile(seconds, 0.9), max(seconds))
            figures[f"burst {way}"] = " / ".join(f"{value:.1f}" for value in spread)
            figures[f"burst {way} waited"] = str(sum(value > RESYNC_SECONDS for value in seconds))
    return "pods at once", ROWS, figures


@contextmanager
def _node() -> Iterator[real.RealNode]:
    node = real.new_node()
    try:
        node.up()
        install(node.kubectl())
        apply_classes(node)
        yield node
    finally:
        node.down()


def _measure(node: real.RealNode, way: str, flags: tuple[str, ...]) -> list[float]:
    sys.stderr.write(f"{PODS} pods at once, waking {way} ...\n")
    agent, world = Agent(node, flags=flags), World(node.kubectl(), f"burst-{way}")
    agent.start()
    try:
        world.begin()
        with partitions(agent):
            burst = Burst(world)
            burst.run(PODS, LIMIT_SECONDS)
            world.end()
    finally:
        agent.stop()
    return list(burst.seconds.values())


if __name__ == "__main__":
    _, rows, figures = section()
    for row in rows:
        sys.stdout.write(f"{row.what}: {figures.get(row.key, '-')}\n")
