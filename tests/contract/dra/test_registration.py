"""Registration as a kubelet does it: what it sees, when, and what happens when it refuses."""

import asyncio
import errno
import shutil
from pathlib import Path

import grpc.aio
import pytest

from gpuclaim.demo.kubelet import PodError
from gpuclaim.demo.kubelet_plugins import KubeletTiming
from kubeletplugin.dra.instance import GrpcPeers
from kubeletplugin.dra.registrar import SUPPORTED_VERSIONS
from kubeletplugin.dra.sockets import target
from kubeletplugin.dra.takeover import State, TakeOver
from kubeletplugin.errors import FatalError
from kubeletplugin.pb.dra.v1 import api_pb2 as v1
from kubeletplugin.pb.dra.v1 import api_pb2_grpc as v1_grpc
from kubeletplugin.pb.pluginregistration.v1 import api_pb2, api_pb2_grpc
from tests.contract.dra.support import DRIVER, KUBELET, SHORT, Node, claim, running_node, until

pytestmark = pytest.mark.anyio


async def test_get_info_names_driver_endpoint_and_versions_newest_first(node: Node) -> None:
    agent = await node.start("a")
    async with grpc.aio.insecure_channel(target(agent.paths.registration)) as channel:
        info = await api_pb2_grpc.RegistrationStub(channel).GetInfo(api_pb2.InfoRequest())
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(agent.paths.dra))
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    (plugin,) = node.kubelet.plugins.plugins(DRIVER)
    assert plugin.service == SUPPORTED_VERSIONS[0]


async def test_get_info_is_answered_within_its_second_while_calls_are_stuck(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    async with grpc.aio.insecure_channel(agent.paths.dra_target) as calls:
        stub = v1_grpc.DRAPluginStub(calls)
        stuck = [
            stub.NodePrepareResources(
                v1.NodePrepareResourcesRequest(claims=[v1.Claim(uid=f"uid-{n}", namespace="default", name=f"c-{n}")])
            )
            for n in range(100)
        ]
        await until(lambda: len(agent.handler.prepared) == 100)
        async with grpc.aio.insecure_channel(target(agent.paths.registration)) as channel:
            stub_registration = api_pb2_grpc.RegistrationStub(channel)
            answers = [stub_registration.GetInfo(api_pb2.InfoRequest(), timeout=1.0) for _ in range(20)]
            names = {(await answer).name for answer in answers}
        assert names == {DRIVER}
        assert not any(call.done() for call in stuck)
        agent.handler.gate.set()
        for call in stuck:
            await call


async def test_a_refusal_is_told_in_the_kubelets_words_and_tried_again(node: Node) -> None:
    node.kubelet.plugins.refuse = "version too new"
    agent = node.make("a")
    await agent.plugin.start()
    await until(lambda: agent.plugin.status.refusal != "")
    assert agent.plugin.status.refusal.endswith("plugin validation failed with err: version too new")
    assert not agent.plugin.status.registered
    assert not agent.active
    first = agent.paths.registration.stat().st_ctime_ns
    node.kubelet.plugins.refuse = ""
    await until(lambda: agent.plugin.status.registered and agent.active)
    assert agent.plugin.status.refusal == ""
    assert agent.paths.registration.stat().st_ctime_ns != first


async def test_a_registration_socket_that_is_gone_is_published_again(node: Node) -> None:
    agent = await node.start("a")
    agent.paths.registration.unlink()
    await until(lambda: not agent.plugin.status.registered)
    await until(lambda: agent.plugin.status.registered and node.connected(agent))
    await node.kubelet.prepare("pod-1", [claim(1)])
    assert agent.handler.prepared == ["uid-1"]


async def test_one_that_registers_anew_is_the_newest_and_knows_it(node: Node) -> None:
    old = await node.start("old")
    new = await node.start("new")
    assert await GrpcPeers("test").register_anew(str(old.paths.dra), timeout=5)
    assert [plugin.endpoint for plugin in node.kubelet.plugins.plugins(DRIVER)] == [
        str(new.paths.dra),
        str(old.paths.dra),
    ]
    assert new.active, "to be the newest isn't to be active"


async def test_one_that_ends_doesnt_register_anew(node: Node) -> None:
    agent = await node.start("a")
    agent.handler.gate.clear()
    call = asyncio.create_task(node.kubelet.prepare("pod-1", [claim(1)]))
    await agent.handler.called.wait()
    stopping = asyncio.create_task(node.stop(agent))
    await until(lambda: agent.plugin.status.state is State.STOPPED)
    assert not await GrpcPeers("test").register_anew(str(agent.paths.dra), timeout=5)
    with pytest.raises(PodError):
        await call
    await stopping


async def test_a_registry_folder_that_is_gone_for_a_while_is_waited_for(node: Node) -> None:
    agent = await node.start("a")
    shutil.rmtree(node.kubelet.registry)
    await until(lambda: not agent.plugin.status.registered)
    node.kubelet.registry.mkdir()
    await until(lambda: agent.plugin.status.registered)


async def test_a_look_at_the_registration_socket_that_fails_isnt_the_last(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await node.start("a")

    def fail(path: Path) -> bool:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("kubeletplugin.dra.registrar.is_socket", fail)
        await until(lambda: any(record.exc_info for record in caplog.records))
    agent.paths.registration.unlink()
    await until(lambda: not agent.plugin.status.registered)
    await until(lambda: agent.plugin.status.registered and node.connected(agent))


async def test_a_loop_that_ends_nevertheless_ends_the_process(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def end(self: TakeOver) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(TakeOver, "run", end)
    agent = node.make("a")
    await agent.plugin.start()
    with pytest.raises(FatalError, match="go on serving claims: take-over looks ended, the log says why"):
        await asyncio.wait_for(agent.plugin.fatal, 5)


async def test_a_kubelet_restart_registers_anew_by_itself(node: Node) -> None:
    agent = await node.start("a")
    await node.kubelet.restart()
    await until(lambda: node.connected(agent))
    assert node.wiped == [None, None]


async def test_no_registry_folder_is_one_line_that_says_what_to_check(short_path: Path) -> None:
    async with running_node(short_path) as node:
        agent = node.make("a")
        await node.kubelet.stop()
        node.kubelet.registry.rmdir()
        with pytest.raises(FatalError, match=r"there is no folder .*plugins_registry; check --kubelet-root-dir"):
            await agent.plugin.start()


async def test_a_stale_socket_of_the_same_name_is_replaced(node: Node) -> None:
    """A container that was killed and restarted keeps its pod's UID, and so its names."""
    agent = node.make("a")
    for path in (agent.paths.registration, agent.paths.hidden, agent.paths.dra):
        server = await asyncio.start_unix_server(lambda _reader, _writer: None, path)
        server.close()
        await server.wait_closed()
    await agent.plugin.start()
    await until(lambda: agent.active and node.connected(agent))


async def test_a_removed_dra_socket_is_fatal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubeletplugin.dra.plugin.SOCKET_LOOK", 0.01)
    agent = await node.start("a")
    agent.paths.dra.unlink()
    with pytest.raises(FatalError, match="was removed by somebody else"):
        await asyncio.wait_for(agent.plugin.fatal, 5)


async def test_long_kubelet_roots_work(short_path: Path) -> None:
    root = short_path / ("r" * (62 - len(str(short_path))))
    root.mkdir()
    async with running_node(root) as node:
        agent = await node.start("0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0")
        assert len(str(agent.paths.registration)) <= 107
        await node.kubelet.prepare("pod-1", [claim(1)])


async def test_slices_are_wiped_only_when_nobody_is_connected_for_a_while(short_path: Path) -> None:
    kubelet = KubeletTiming(look=KUBELET.look, health_retry=KUBELET.health_retry, wiping_delay=0.05)
    async with running_node(short_path, SHORT, kubelet) as node:
        first = await node.start("a")
        second = await node.start("b")
        await node.stop(first)
        await until(lambda: len(node.kubelet.plugins.plugins(DRIVER)) == 1)
        assert node.wiped == [None]
        await node.stop(second)
        await until(lambda: node.wiped == [None, DRIVER])
