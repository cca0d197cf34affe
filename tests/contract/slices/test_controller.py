"""What the controller does on the wire: what the server accepts, drops, refuses and deletes."""

from pathlib import Path

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import NODES, RESOURCE_SLICES
from kubeletplugin.inventory.model import Attribute
from kubeletplugin.slices.render import render_slices
from tests.contract.slices.conftest import NODE, Agent, running_agent
from tests.unit.allocator.machines import slices_of_all_machines
from tests.unit.slices.samples import gpu_device, inventory_of, many, plain, taint

pytestmark = pytest.mark.anyio


async def test_slices_as_the_peer_writes_them(agent: Agent, server: FakeApiServer) -> None:
    agent.controller.set_devices(inventory_of(gpu_device(0, eccEnabled=Attribute("bool", False))))
    await agent.accepted()
    (item,) = server.objects(RESOURCE_SLICES)
    node = server.object(NODES, NODE)
    assert item["metadata"]["name"].startswith("00000-gpu.nvidia.com-node-1-")
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"], "controller": True}
    ]
    assert item["spec"]["nodeName"] == NODE
    assert item["spec"]["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert item["spec"]["devices"][0]["capacity"] == {"memory": {"value": "81559Mi"}}


async def test_an_agent_that_is_started_again_writes_nothing(agent: Agent, server: FakeApiServer) -> None:
    agent.want(*many(70))
    await agent.accepted()
    await agent.controller.stop()
    async with running_agent(server) as second:
        second.want(*many(70))
        await second.accepted()
        assert second.log.writes == []
    assert [len(names) for names in agent.published()] == [64, 6]


async def test_the_kubelets_wipe_is_repaired_every_time(agent: Agent) -> None:
    agent.want(*many(70))
    await agent.accepted()
    for _ in range(3):
        await agent.wipe_as_the_kubelet_does()
        await agent.until(lambda: [len(names) for names in agent.published()] == [64, 6])
    await agent.accepted()


async def test_slices_of_others_are_left_alone(agent: Agent, server: FakeApiServer) -> None:
    spec = {"pool": {"name": "other", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "x"}]}
    server.put(
        RESOURCE_SLICES,
        {"metadata": {"name": "theirs"}, "spec": {**spec, "driver": "nic.example.com", "nodeName": NODE}},
    )
    server.put(
        RESOURCE_SLICES,
        {"metadata": {"name": "elsewhere"}, "spec": {**spec, "driver": "gpu.nvidia.com", "nodeName": "node-2"}},
    )
    agent.want(plain("a"))
    await agent.accepted()
    assert {item["metadata"]["name"] for item in server.objects(RESOURCE_SLICES)} >= {"theirs", "elsewhere"}
    assert agent.log.writes == ["create"]


async def test_the_server_goes_away_while_devices_change(agent: Agent, server: FakeApiServer) -> None:
    agent.want(plain("a"))
    await agent.accepted()
    await server.stop()
    agent.want(plain("a"), plain("b"))
    await agent.until(lambda: bool(agent.log.told))
    assert not agent.controller.accepted
    await server.start()
    await agent.accepted()
    assert agent.published() == [["a", "b"]]
    assert agent.log.writes == ["create", "update"]


async def test_a_wipe_while_the_watch_is_cut_is_found_by_listing(agent: Agent, server: FakeApiServer) -> None:
    agent.want(plain("a"))
    await agent.accepted()
    server.lose_events(RESOURCE_SLICES)
    server.remove(RESOURCE_SLICES, server.objects(RESOURCE_SLICES)[0]["metadata"]["name"])
    server.compact()
    server.end_watches()
    await agent.until(lambda: agent.published() == [["a"]])


async def test_a_conflict_is_overcome(agent: Agent, server: FakeApiServer) -> None:
    agent.want(plain("a"))
    await agent.accepted()
    (item,) = server.objects(RESOURCE_SLICES)
    server.lose_events(RESOURCE_SLICES)
    server.put(RESOURCE_SLICES, {**item, "metadata": {**item["metadata"], "labels": {"by": "others"}}})
    agent.want(plain("b"))
    await agent.until(lambda: any("Conflict" in line for line in agent.log.told))
    server.compact()
    server.end_watches()
    await agent.accepted()
    assert agent.published() == [["b"]]


async def test_an_answer_that_is_lost_doesnt_leave_two_slices(agent: Agent, server: FakeApiServer) -> None:
    server.faults.drop(verb="create", resource="resourceslices", done=True)
    agent.want(plain("a"))
    await agent.accepted()
    assert agent.published() == [["a"]]


async def test_a_device_that_the_server_refuses_costs_only_itself(agent: Agent) -> None:
    listed = plain(
        "b", consumesCounters=[{"counterSet": "s", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]
    )
    agent.want(plain("a"), listed, plain("c"))
    await agent.accepted()
    assert agent.published() == [["a", "c"]]
    assert any(line.startswith("leave out device b: the API server refuses it") for line in agent.log.told)


async def test_a_refused_pool_is_sent_once(agent: Agent, server: FakeApiServer) -> None:
    server.faults.fail(422, times=100, verb="create", resource="resourceslices", message="denied by a policy")
    agent.want(plain("a"))
    await agent.until(lambda: bool(agent.log.told))
    await agent.clock.advance(100)
    assert server.requests["create", "resourceslices"] == 1
    server.faults.release()
    agent.want(plain("b"))
    await agent.accepted()
    assert agent.published() == [["b"]]


async def test_a_server_without_taints_gets_no_tainted_device(agent: Agent, server: FakeApiServer) -> None:
    server.gates["DRADeviceTaints"] = False
    agent.want(plain("a"), plain("b", taints=[taint()]))
    await agent.accepted()
    assert agent.published() == [["a"]]
    assert any("off: DRADeviceTaints" in line for line in agent.log.told)
    assert agent.log.writes == ["create", "update"]


async def test_a_taint_keeps_the_time_that_the_server_gave_it(agent: Agent, server: FakeApiServer) -> None:
    agent.want(plain("a", taints=[taint()]))
    await agent.accepted()
    (item,) = server.objects(RESOURCE_SLICES)
    item["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2020-01-01T00:00:00Z"
    server.put(RESOURCE_SLICES, item)
    agent.want(plain("a", taints=[taint()]), plain("b"))
    await agent.until(lambda: agent.published() == [["a", "b"]])
    (item,) = server.objects(RESOURCE_SLICES)
    assert item["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2020-01-01T00:00:00Z"


async def test_a_dry_run_leaves_nothing(agent: Agent, server: FakeApiServer) -> None:
    assert await agent.controller.dry_run(inventory_of(*(gpu_device(index) for index in range(66)))) == ()
    assert server.objects(RESOURCE_SLICES) == []
    assert server.requests["create", "resourceslices"] == 2


async def test_rendered_slices_are_accepted_and_taken_over(agent: Agent, server: FakeApiServer) -> None:
    inventory = inventory_of(*(gpu_device(index) for index in range(66)))
    for body in render_slices(inventory, NODE).slices:
        await agent.api.create(RESOURCE_SLICES, body)
    agent.controller.set_devices(inventory)
    await agent.accepted()
    assert agent.log.writes == []


async def test_the_server_takes_the_slices_of_every_machine_unchanged(agent: Agent, tmp_path: Path) -> None:
    for body in await slices_of_all_machines(tmp_path):
        stored = await agent.api.create(RESOURCE_SLICES, body)
        assert stored["spec"] == body["spec"]
