"""The newest value for readers at their own pace."""

import asyncio

import pytest

from kubeletplugin.inventory.broadcast import Latest

pytestmark = pytest.mark.anyio


async def test_a_reader_gets_the_value_there_is_and_then_only_the_newest() -> None:
    latest: Latest[int] = Latest()
    assert latest.value is None
    latest.set(1)
    latest.set(2)
    reader = latest.follow()
    assert await anext(reader) == 2
    waiting = asyncio.ensure_future(anext(reader))
    await asyncio.sleep(0)
    assert not waiting.done()
    latest.set(3)
    latest.set(4)
    assert await waiting == 4


async def test_readers_do_not_take_from_each_other() -> None:
    latest: Latest[str] = Latest()
    readers = [asyncio.ensure_future(anext(latest.follow())) for _ in range(3)]
    await asyncio.sleep(0)
    latest.set("x")
    assert await asyncio.gather(*readers) == ["x"] * 3
