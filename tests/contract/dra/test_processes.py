"""Instances as real processes: what the others and the kubelet see when one dies, stops or hangs."""

import asyncio
import signal

import pytest

from gpuclaim.demo.kubelet import PodError
from kubeletplugin.dra.sockets import plugin_dir
from kubeletplugin.lease.watchdog import EXIT_STATUS
from tests.contract.dra.instances import instance, recorded, server_of, special
from tests.contract.dra.support import DRIVER, Node, claim, until

pytestmark = pytest.mark.anyio


async def test_calls_go_on_after_the_active_instance_is_killed(node: Node) -> None:
    async with instance(node, "old") as old, instance(node, "new") as new:
        assert await server_of(node, "pod-1", claim(1)) == "new"
        new.send(signal.SIGKILL)
        await new.process.wait()
        await until(lambda: not new.connected())
        assert await server_of(node, "pod-2", claim(2)) == "old"
        assert recorded(node).process is not None
        assert recorded(node).epoch == 3
        assert old.process.returncode is None
        await until(lambda: len(list((plugin_dir(node.root, DRIVER)).glob("dra-*.sock"))) == 1)


async def test_a_call_waiting_in_another_process_is_relayed(node: Node) -> None:
    async with instance(node, "old"):
        call = asyncio.create_task(server_of(node, "pod-1", special("wait-at-old")))
        async with instance(node, "new"):
            assert await call == "new"
            assert recorded(node).epoch == 2


async def test_an_instance_stopped_with_the_lease_locked_is_killed_and_replaced(node: Node) -> None:
    """R_KILL, with a real SIGSTOP inside the real lock."""
    async with instance(node, "old") as old:
        call = asyncio.create_task(node.kubelet.prepare("pod-1", [special("stop-in-lock")]))
        await until(old.stopped)
        async with instance(node, "new"):
            assert await old.process.wait() == -signal.SIGKILL
            with pytest.raises(PodError, match=r"Unavailable|Unknown|Canceled"):
                await call
            assert await server_of(node, "pod-2", claim(2)) == "new"


async def test_a_blocked_event_loop_ends_the_process_and_the_standby_serves(node: Node) -> None:
    async with instance(node, "old") as old, instance(node, "new") as new:
        with pytest.raises(PodError):
            await node.kubelet.prepare("pod-1", [special("block-loop")])
        assert await new.process.wait() == EXIT_STATUS
        await until(lambda: not new.connected() and recorded(node).instance == "old" and old.connected())
        assert await server_of(node, "pod-2", claim(2)) == "old"


async def test_sigterm_leaves_no_sockets_and_no_holder(node: Node) -> None:
    async with instance(node, "a") as process:
        await node.kubelet.prepare("pod-1", [claim(1)])
        process.send(signal.SIGTERM)
        assert await process.process.wait() == 0
    assert list(node.root.rglob("*.sock")) == []
    assert recorded(node).instance == ""
