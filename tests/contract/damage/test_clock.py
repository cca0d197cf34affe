"""The wall clock is for people: nothing may wait longer, end sooner or be forgotten because it jumps."""

import signal
from pathlib import Path

import pytest

from tests.contract.agent.node import until_true
from tests.contract.damage.node import DamagedNode, assert_told_well, troubles

pytestmark = pytest.mark.anyio

COMMAND = ("-m", "tests.contract.damage.jumping_agent")


def set_jump(path: Path, days: int) -> None:
    """At once: the agent reads it whenever it asks for the time."""
    new = path.with_suffix(".new")
    new.write_text(str(days))
    new.replace(path)


@pytest.mark.parametrize("days", [4000, -4000], ids=["forward", "backward"])
async def test_a_clock_that_jumps(node: DamagedNode, days: int, monkeypatch: pytest.MonkeyPatch) -> None:
    jump = node.folder / "jump"
    set_jump(jump, 0)
    monkeypatch.setenv("JUMP", str(jump))
    first = await node.start_process("first", "--log-format=json", "--rescan-interval=0.5", command=COMMAND)
    await node.ready()
    held = await node.held("train", "gpu-1")
    node.pods.run("pod-of-gone", 4711)
    gone = await node.held("gone", "gpu-2")
    await node.released(gone)
    set_jump(jump, days)
    later = await node.held("later", "gpu-3")
    await node.wipe(None)
    await until_true(lambda: len(node.devices()) == 8)
    assert await node.holders("gpu-2") == ["gone"]
    await first.end(signal.SIGKILL)
    second = await node.start_process("second", "--log-format=json", "--rescan-interval=0.5", command=COMMAND)
    await until_true(lambda: "registered: True, active" in second.output)
    await node.ready()
    set_jump(jump, 0)
    assert await node.holders("gpu-2") == ["gone"]
    node.pods.end("pod-of-gone")
    await node.until_holder("gpu-2")
    await node.still_works((held, "gpu-1"), (later, "gpu-3"))
    for agent in (first, second):
        # That a drain lasts long is told by the wall clock; nothing else hangs on it.
        assert [text for text in troubles(agent.output) if "has been draining for long" not in text] == []
        assert_told_well(agent.output)


async def test_damage_twice_under_one_time_keeps_both_files(node: DamagedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    jump = node.folder / "jump"
    set_jump(jump, 0)
    monkeypatch.setenv("JUMP", str(jump))
    node.ledger.parent.mkdir(parents=True)
    for name in ("first", "second"):
        node.ledger.write_bytes(b"garbage of the " + name.encode() + b"x" * 5000)
        agent = await node.ready_agent(name=name)
        await agent.end(signal.SIGTERM)
    assert len(list(node.ledger.parent.glob("ledger.db.damaged-*"))) == 2
