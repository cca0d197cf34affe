"""The kubelet restarts again and again under held claims: one wipe of the slices each time, and nothing else."""

import time

from tests.cluster.harness.agent import Agent
from tests.cluster.objects import claim, pod, template
from tests.cluster.world import World
from tests.soak.conftest import Repeats, Tell
from tests.soak.slice_watch import watching_slices

RESTARTS = 20
SETTLE_SECONDS = 4.0
"""A wipe that came twice would come by then: the kubelet retries one that failed after a second or so."""


def test_held_claims_and_slices(agent: Agent, world: World, repeats: Repeats, tell: Tell) -> None:
    world.create(template("one"), claim("shared"))
    names = [f"p{number}" for number in range(3)]
    world.create(*(pod(name, template_name="one") for name in names), pod("first", claim_name="shared"))
    world.running(*names, "first")
    held = {name: world.gpu_nodes(name) for name in (*names, "first")}
    restarts, joined = repeats(RESTARTS), ["first"]
    with watching_slices(world.kubectl) as watch:
        slices = watch.events["ADDED"]
        for number in range(restarts):
            wiped = watch.events["DELETED"] + slices
            agent.node.restart_kubelet()
            watch.wait("DELETED", wiped)
            watch.wait("ADDED", wiped + slices)
            if number % 5 == 0:
                joined.append(f"joined{number}")
                world.create(pod(joined[-1], claim_name="shared"))
                world.running(joined[-1], seconds=60)
            time.sleep(SETTLE_SECONDS)
        events = dict(watch.events)
    away = sorted(watch.away)
    tell(
        restarts=restarts,
        slices_deleted=events["DELETED"],
        slices_added=events["ADDED"],
        away_ms=f"{away[len(away) // 2] * 1000:.0f} (longest {away[-1] * 1000:.0f})",
    )
    assert events["DELETED"] == restarts * slices
    assert events["ADDED"] == (restarts + 1) * slices
    assert {name: world.gpu_nodes(name) for name in held} == held
    assert {frozenset(world.gpu_nodes(name)) for name in joined} == {frozenset(held["first"])}
    assert [world.restarts(name) for name in (*held, *joined)] == [0] * (len(held) + len(joined))
