"""CDI files that somebody else removed are written again from the claims' rows, and no others."""

import asyncio
from pathlib import Path

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from tests.contract.prepare.node import Agent
from tests.contract.prepare.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_is_missing_is_written_and_what_is_there_is_not_counted(world: World) -> None:
    agent = await Agent(world).start()
    for name, device in (("a", "gpu-0"), ("b", "gpu-1")):
        await agent.prepare_one(world.allocate(name, device))
    before = dict(world.files)
    assert await agent.manager.mend_files(["uid-a", "uid-b"]) == 0
    del world.files["uid-a"]
    assert await agent.manager.mend_files(["uid-a", "uid-b"]) == 1
    assert world.files == before
    world.files.clear()
    assert await agent.manager.mend_files(None) == 2
    assert world.files == before
    await agent.stop()


async def test_a_claim_that_is_being_unprepared_gets_no_file(world: World) -> None:
    agent = await Agent(world).start()
    ref = world.allocate("a", "gpu-0")
    await agent.prepare_one(ref)
    mended: list[asyncio.Task[int]] = []
    world.at("look", lambda: mended.append(agent.begin(agent.manager.mend_files(None))))
    assert await agent.unprepare(ref) == ""
    assert await asyncio.gather(*mended) == [0]
    assert await agent.manager.mend_files(["uid-a"]) == 0
    assert world.files == {}
    await agent.stop()


async def test_one_that_cannot_be_written_keeps_no_other_from_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await Agent(world).start()
    for name, device in (("a", "gpu-0"), ("b", "gpu-1")):
        await agent.prepare_one(world.allocate(name, device))
    world.files.clear()
    world.write_error = RecoverableError("write CDI spec: no space left on device; free space there")
    assert await agent.manager.mend_files(["uid-a"]) == 0
    assert await agent.manager.mend_files(["uid-a"]) == 0
    (line,) = caplog.messages[-1:]
    assert line.startswith("restore the CDI file of claim ns/a: write CDI spec: no space left")
    assert sum("restore the CDI file" in message for message in caplog.messages) == 1
    world.write_error = None
    assert await agent.manager.mend_files(["uid-a", "uid-b"]) == 2
    await agent.stop()


async def test_an_instance_that_gives_way_writes_nothing(world: World) -> None:
    agent = await Agent(world).start()
    await agent.manager.yield_()
    with pytest.raises(NotActiveError):
        await agent.manager.mend_files(None)
    await agent.stop()
