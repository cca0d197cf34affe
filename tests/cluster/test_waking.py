"""Pods whose Prepare failed, or never came, run within seconds of the moment from which it would succeed.

The kubelet by itself would try again 60 to 90 s after the failure (62 was the shortest seen).
"""

import datetime
import json

from tests.cluster.burst import Burst, partitions
from tests.cluster.harness.agent import Agent
from tests.cluster.objects import Json, claim, claim_spec, pod, request, template
from tests.cluster.world import FAILED, World

WAKES = "gpu.nvidia.com/wakes"
SOON = 40.0
"""Seconds: well below the kubelet's resync, well above what waking takes."""
PODS = 50
UUID = 'device.attributes["gpu.nvidia.com"].uuid'


def wakes(world: World, name: str) -> int:
    found = world.kubectl.json("get", "pod", name, "-n", world.namespace)
    return int(found["metadata"].get("annotations", {}).get(WAKES, "0"))


def failures(world: World, name: str, text: str) -> list[str]:
    return [event for event in world.events(name) if event.startswith(FAILED) and text in event]


def bind(world: World, name: str, claim_name: str, like: Json) -> None:
    """As the scheduler would, with the allocation of another claim."""
    uid = world.kubectl.json("get", "pod", name, "-n", world.namespace)["metadata"]["uid"]
    consumer = {"resource": "pods", "name": name, "uid": uid}
    status = {"allocation": like["status"]["allocation"], "reservedFor": [consumer]}
    where = ("-n", world.namespace, "--subresource=status", "--type=merge", "-p")
    world.kubectl.run("patch", "resourceclaim", claim_name, *where, json.dumps({"status": status}))
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    path = f"/api/v1/namespaces/{world.namespace}/pods/{name}/binding"
    world.kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))


def test_a_pod_that_came_while_no_agent_ran(agent: Agent, world: World) -> None:
    world.create(template("one"))
    agent.kill()
    world.create(pod("p", template_name="one"))
    world.kubectl.wait("the kubelet fails without the driver", lambda: failures(world, "p", ""), 20)
    agent.start()
    world.running("p", seconds=SOON)
    assert wakes(world, "p") == 1


def test_a_refusal_whose_reason_goes(agent: Agent, world: World) -> None:
    """Two claims on one GPU is what no scheduler does, so an administrator writes the second's allocation."""
    spec = claim_spec(request(cel=f'{UUID} == "{world.attribute("gpu-4", "uuid")}"'))
    two = pod("two", claim_name="second")
    two["spec"]["schedulerName"] = "the-test"
    world.create(claim("first", spec), claim("second", spec), pod("one", claim_name="first"), two)
    world.running("one")
    bind(world, "two", "second", world.kubectl.json("get", "resourceclaim", "first", "-n", world.namespace))
    world.kubectl.wait("its Prepare is refused", lambda: failures(world, "two", "is held by claim first"), SOON)
    assert world.pending("two")
    before = wakes(world, "two")
    world.delete("pod/one")
    world.running("two", seconds=SOON)
    assert wakes(world, "two") == before + 1
    assert len(failures(world, "two", "")) == before + 1


def test_50_pods_at_once(agent: Agent, world: World) -> None:
    """Who failed was woken, and then ran long before the kubelet's resync."""
    with partitions(agent):
        burst = Burst(world)
        burst.run(PODS, limit=240)
        late = waits(world)
        world.delete("pods", "--all")
    assert {name: seconds for name, seconds in late.items() if seconds > SOON} == {}
    woken = [line for line in agent.log.splitlines() if f"wake pod {world.namespace}/" in line]
    assert len(woken) <= 2 * PODS


def waits(world: World) -> dict[str, float]:
    """Of each pod whose Prepare failed: seconds from its last failure until its container started."""
    started = {
        item["metadata"]["name"]: _time(item["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])
        for item in world.kubectl.items("pods", "-n", world.namespace)
    }
    failed: dict[str, list[datetime.datetime]] = {}
    for event in world.kubectl.items("events", "-n", world.namespace, "--field-selector", f"reason={FAILED}"):
        failed.setdefault(event["involvedObject"]["name"], []).append(_time(event["lastTimestamp"]))
    return {name: (started[name] - max(times)).total_seconds() for name, times in failed.items()}


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
