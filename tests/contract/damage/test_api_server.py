"""An API server that is away, slow, refuses or cuts off: what needs it waits, what doesn't goes on."""

import asyncio
import re
from collections.abc import Callable

import pytest
import yaml

from gpuclaim.demo.stage import kubeconfig
from kubeapi.client import RESOURCE_CLAIMS
from tests.contract.agent.node import until, until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well, troubles

pytestmark = pytest.mark.anyio

FOR_EVER = 1_000_000


def refuse(code: int, retry_after: int = 0) -> Callable[[DamagedNode], None]:
    def begin(node: DamagedNode) -> None:
        node.server.faults.fail(code, times=FOR_EVER, retry_after=retry_after)

    return begin


def break_off(node: DamagedNode) -> None:
    node.server.faults.drop(times=FOR_EVER)


@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        (refuse(429, retry_after=1), "injected fault 429"),
        (refuse(500), "injected fault 500"),
        (refuse(503), "injected fault 503"),
        (refuse(401), "injected fault 401"),
        (break_off, "closed the connection"),
    ],
)
async def test_a_prepare_waits_for_a_server_in_trouble(
    node: DamagedNode, trouble: Callable[[DamagedNode], None], word: str
) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    trouble(node)
    node.server.cut_watches()
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))

    async def waits() -> bool:
        return any(word in entry["for"] for entry in (await node.status())["waiting"])

    await until(waits)
    await node.released(claim)  # needs no server
    assert await node.holders("gpu-1") == []
    await until_true(lambda: word in " ".join(troubles(agent.output)))
    node.server.faults.release()
    await preparing
    await node.still_works((waiting, "gpu-2"))
    await node.wipe(None)
    await until_true(lambda: len(node.devices()) == 8)
    assert_told_well(agent.output)


async def test_a_server_that_is_away(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    await node.server.stop()
    await node.released(claim)
    await until_true(lambda: "connection refused" in agent.output)
    await asyncio.sleep(3)
    await node.server.start()
    await node.wipe(None)
    await until_true(lambda: len(node.devices()) == 8)
    await node.still_works()
    assert_told_well(agent.output)
    (said,) = {text for text in troubles(agent.output) if "connection refused" in text and "resourceslices" in text}
    assert node.server.url in said


async def test_a_server_that_hangs_is_named_long_before_the_time_limit(node: DamagedNode) -> None:
    agent = await node.ready_agent()
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    node.server.faults.hang(times=FOR_EVER)
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))
    await until_true(lambda: "hasn't answered" in agent.output)
    (entry,) = (await node.status())["waiting"]
    assert "API server" in entry["for"]
    node.server.faults.release()
    await preparing
    await node.still_works((waiting, "gpu-2"))
    assert_said_once(agent.output, f"API server {node.server.url} hasn't answered", "GET", RESOURCE_CLAIMS.plural)


async def test_an_expired_token_is_read_anew(node: DamagedNode) -> None:
    token = node.folder / "token"
    token.write_text("first")
    config = kubeconfig(node.server.url)
    config["users"][0]["user"] = {"tokenFile": str(token)}
    (node.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    node.server.faults.tokens = {"first"}
    agent = await node.ready_agent()
    token.write_text("second")
    node.server.faults.tokens = {"second"}
    await node.still_works()
    await node.wipe(None)
    await until_true(lambda: len(node.devices()) == 8)
    assert troubles(agent.output) == []


async def test_a_token_that_is_refused_for_a_while(node: DamagedNode) -> None:
    token = node.folder / "token"
    token.write_text("first")
    config = kubeconfig(node.server.url)
    config["users"][0]["user"] = {"tokenFile": str(token)}
    (node.folder / "kubeconfig").write_text(yaml.safe_dump(config))
    node.server.faults.tokens = {"first"}
    agent = await node.ready_agent()
    node.server.faults.tokens = {"second"}
    node.server.cut_watches()
    await until_true(lambda: "Unauthorized" in " ".join(troubles(agent.output)))
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))
    await asyncio.sleep(1)
    assert not preparing.done()
    token.write_text("second")
    await preparing
    await node.still_works((waiting, "gpu-2"))
    assert_told_well(agent.output)


@pytest.mark.parametrize("way", ["ends each watch at once", "has forgotten the version", "cuts each watch off"])
async def test_watches_that_dont_last(node: DamagedNode, way: str) -> None:
    """Own slices are restored all the same, and the server isn't called in a loop."""
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    if way == "has forgotten the version":
        node.server.faults.fail(410, times=5, verb="watch")
        node.server.cut_watches()
    for _ in range(10):
        if way == "ends each watch at once":
            node.server.end_watches()
        else:
            node.server.cut_watches()
        await asyncio.sleep(0.3)
    await node.wipe(None)
    await until_true(lambda: len(node.devices()) == 8)
    assert node.server.faults.requests["watch", "resourceslices"] < 20
    await node.still_works((claim, "gpu-1"))
    assert_told_well(agent.output)


async def test_a_mute_watch_doesnt_keep_a_prepare(node: DamagedNode) -> None:
    node.server.faults.hang(times=FOR_EVER, verb="watch")
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    await node.still_works((claim, "gpu-1"))
    assert_told_well(agent.output)
    assert not re.search("ResourceSlice.*(delete|removed)", agent.output)
