"""Two instances in one process: who serves, and that no call is lost while that changes."""

import asyncio
import itertools

import grpc.aio
import pytest

from kubeletplugin.dra.health import DeviceState
from kubeletplugin.dra.instance import GrpcPeers, PeerError
from kubeletplugin.errors import FatalError, RecoverableError
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.prepare.model import ClaimRef
from tests.contract.dra.support import DRIVER, Agent, Node, claim, status, until

pytestmark = pytest.mark.anyio

POD = "pod-1"


async def call_directly(agent: Agent, number: int) -> v1.NodePrepareResourceResponse:
    """A kubelet's call to an instance that isn't the one registered last."""
    wanted = claim(number)
    async with grpc.aio.insecure_channel(agent.paths.dra_target) as channel:
        response = await v1_grpc.DRAPluginStub(channel).NodePrepareResources(
            v1.NodePrepareResourcesRequest(
                claims=[v1.Claim(uid=wanted.uid, namespace=wanted.namespace, name=wanted.name)]
            ),
            timeout=20,
        )
    return response.claims[wanted.uid]


async def test_a_newly_registered_instance_takes_over_and_serves(node: Node) -> None:
    old = await node.start("old")
    new = await node.start("new")
    assert not old.active
    assert node.journal == ["old activates", "old deactivates", "new activates"]
    await node.kubelet.prepare(POD, [claim(1)])
    assert (old.handler.prepared, new.handler.prepared) == ([], ["uid-1"])
    assert new.plugin.status.epoch == 2


async def test_a_call_that_comes_while_the_other_yields_waits_and_succeeds(node: Node) -> None:
    await node.start("old")
    new = node.make("new")
    new.work.ready.clear()
    await new.plugin.start()
    await until(lambda: node.connected(new))
    call = asyncio.create_task(node.kubelet.prepare(POD, [claim(1)]))
    await until(lambda: "new activates" in node.journal)
    assert not call.done()
    new.work.ready.set()
    assert list(await call) == ["uid-1"]


async def test_a_call_waiting_at_the_old_instance_is_answered_by_the_new_one(node: Node) -> None:
    """R_YIELD: the yield doesn't wait for the wait, and the call's answer is relayed."""
    old = await node.start("old")
    old.handler.gate.clear()
    call = asyncio.create_task(node.kubelet.prepare(POD, [claim(1)]))
    await old.handler.called.wait()
    new = await node.start("new")
    assert list(await call) == ["uid-1"]
    assert new.handler.finished == ["uid-1"]
    assert old.handler.finished == []


async def test_calls_waiting_at_both_dont_take_the_lease_from_each_other(node: Node) -> None:
    old = await node.start("old")
    old.handler.gate.clear()
    first = asyncio.create_task(node.kubelet.prepare(POD, [claim(1)]))
    await old.handler.called.wait()
    new = node.make("new")
    new.handler.gate.clear()
    await new.plugin.start()
    await until(lambda: new.handler.prepared == ["uid-1"])
    second = asyncio.create_task(node.kubelet.prepare("pod-2", [claim(2)]))
    await until(lambda: new.handler.prepared == ["uid-1", "uid-2"])
    await asyncio.sleep(0.1)
    assert node.journal == ["old activates", "old deactivates", "new activates"]
    new.handler.gate.set()
    await asyncio.gather(first, second)


async def test_a_call_from_the_kubelet_brings_the_lease_back(node: Node) -> None:
    old = await node.start("old")
    new = await node.start("new")
    assert (await call_directly(old, 1)).error == ""
    assert old.active
    assert not new.active
    assert old.handler.prepared == ["uid-1"]
    assert node.journal[-2:] == ["new deactivates", "old activates"]


async def test_a_relayed_call_is_no_reason_to_take_over(node: Node) -> None:
    old = await node.start("old")
    await node.start("new")
    with pytest.raises(PeerError, match="FAILED_PRECONDITION"):
        await GrpcPeers("test").prepare(str(old.paths.dra), [ClaimRef("uid-1", "default", "claim-1")], timeout=5)
    assert node.journal == ["old activates", "old deactivates", "new activates"]


async def test_unprepare_is_relayed_too(node: Node) -> None:
    old = await node.start("old")
    await node.kubelet.prepare(POD, [claim(1)])
    old.handler.gate.clear()
    old.handler.called.clear()
    call = asyncio.create_task(node.kubelet.unprepare(POD, [claim(1)]))
    await old.handler.called.wait()
    new = await node.start("new")
    await call
    assert new.handler.unprepared == ["uid-1"]


async def test_an_instance_that_cant_work_gives_the_lease_back(node: Node) -> None:
    old = await node.start("old")
    new = node.make("new")
    new.work.failure = RecoverableError("open the ledger: disk full")
    await new.plugin.start()
    await until(lambda: new.plugin.status.failure != "")
    await until(lambda: node.connected(new))
    await node.kubelet.prepare(POD, [claim(1)])
    assert old.handler.prepared == ["uid-1"]
    assert new.handler.prepared == []
    assert new.plugin.status.failure == "open the ledger: disk full"


async def test_an_instance_that_cant_work_and_is_alone_says_why_in_the_pods_event(node: Node) -> None:
    agent = node.make("a")
    agent.work.failure = RecoverableError("open the ledger: disk full")
    await agent.plugin.start()
    await until(lambda: agent.plugin.status.registered)
    async with grpc.aio.insecure_channel(agent.paths.dra_target) as channel:
        response = await v1_grpc.DRAPluginStub(channel).NodePrepareResources(
            v1.NodePrepareResourcesRequest(claims=[v1.Claim(uid="u", namespace="default", name="c")]), timeout=0.3
        )
    assert response.claims["u"].error == "the GPU agent can't serve claims now: open the ledger: disk full"
    agent.work.failure = None
    await until(lambda: agent.active)


async def test_a_fatal_failure_to_activate_ends_the_process(node: Node) -> None:
    agent = node.make("a")
    agent.work.failure = FatalError("ledger of a newer version")
    await agent.plugin.start()
    with pytest.raises(FatalError, match="newer version"):
        await asyncio.wait_for(agent.plugin.fatal, 5)
    assert not agent.active


async def test_stop_hands_over_to_the_standby_and_passes_waiting_calls_on(node: Node) -> None:
    old = await node.start("old")
    new = await node.start("new")
    new.handler.gate.clear()
    call = asyncio.create_task(node.kubelet.prepare(POD, [claim(1)]))
    await new.handler.called.wait()
    stopping = asyncio.create_task(node.stop(new))
    assert list(await call) == ["uid-1"]
    await stopping
    assert old.handler.finished == ["uid-1"]
    assert not new.paths.dra.exists()
    assert not new.paths.registration.exists()
    assert old.paths.dra.exists()
    await until(lambda: node.connected(old))
    await node.kubelet.prepare("pod-2", [claim(2)])
    assert node.wiped == [None]


async def test_the_newest_one_ends_under_calls_and_none_is_broken_off(node: Node) -> None:
    """The kubelet calls it until it has noticed, and closes its connection then: it is to call another one before."""
    old = await node.start("old")
    for number in range(5):
        new = await node.start(f"new-{number}")
        stopping = asyncio.create_task(node.stop(new))
        calls = itertools.count()
        while not stopping.done():
            await node.kubelet.prepare(f"{number}-{next(calls)}", [claim(1000 * number + next(calls))])
        await stopping
    assert old.active


async def test_stop_without_a_standby_answers_waiting_calls_with_the_reason(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    call = asyncio.create_task(call_directly(agent, 1))
    await agent.handler.called.wait()
    await node.stop(agent)
    assert (await call).error == "the GPU agent is stopping; the next try takes it up again"


async def test_stop_lets_calls_that_work_finish(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    call = asyncio.create_task(call_directly(agent, 1))
    await agent.handler.called.wait()
    stopping = asyncio.create_task(node.stop(agent))
    await asyncio.sleep(0.05)
    assert node.journal == ["a activates"]
    assert agent.paths.registration.exists()
    agent.handler.gate.set()
    assert (await call).error == ""
    await stopping
    assert node.journal == ["a activates", "a deactivates"]


async def test_only_the_active_instance_reports_health(node: Node) -> None:
    old = await node.start("old")
    old.source.look(status("gpu-0", message="seen by old"))
    await until(lambda: node.kubelet.plugins.health(DRIVER, "node-1", "gpu-0") is not None)
    new = await node.start("new")
    new.source.look(status("gpu-0", DeviceState.UNHEALTHY, "seen by new"))

    def message() -> str:
        value = node.kubelet.plugins.health(DRIVER, "node-1", "gpu-0")
        return value.message if value is not None else ""

    await until(lambda: message() == "seen by new")
    old.source.look(status("gpu-0", message="seen by old again"))
    new.source.look(status("gpu-0", message="seen by new again"))
    await until(lambda: message() == "seen by new again")


async def test_the_end_of_another_instances_stream_makes_the_active_one_send_all_again(node: Node) -> None:
    old = await node.start("old")
    new = await node.start("new")
    new.source.look(status("gpu-0"), status("gpu-1", DeviceState.UNKNOWN, "NVML didn't answer"))
    await until(lambda: node.kubelet.plugins.health(DRIVER, "node-1", "gpu-1") is not None)
    await node.stop(old)
    await until(lambda: len(node.kubelet.plugins.plugins(DRIVER)) == 1)
    await asyncio.sleep(0.05)
    value = node.kubelet.plugins.health(DRIVER, "node-1", "gpu-1")
    assert value is not None
    assert (value.state, value.message) == ("Unknown", "NVML didn't answer")


async def test_sockets_of_a_dead_instance_are_removed_by_the_active_one(node: Node) -> None:
    dead = node.make("dead")
    node.agents.remove(dead)
    for path in (dead.paths.registration, dead.paths.dra):
        server = await asyncio.start_unix_server(lambda _reader, _writer: None, path)
        server.close()
        await server.wait_closed()
    living = await node.start("old")
    await node.start("new")
    await until(lambda: not dead.paths.registration.exists() and not dead.paths.dra.exists())
    assert living.paths.dra.exists()
    assert living.paths.registration.exists()


async def test_a_wiped_lease_file_makes_the_instance_step_back_and_take_over_anew(node: Node) -> None:
    agent = await node.start("a")
    agent.lease.path.unlink()
    await until(lambda: node.journal == ["a activates", "a deactivates", "a activates"])
    await until(lambda: agent.active)
    await node.kubelet.prepare(POD, [claim(1)])
