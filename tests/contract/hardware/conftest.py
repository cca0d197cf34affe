"""Loops that stay open: grpc.aio's poller belongs to the process and wakes every loop that ever used it, closed or not,
and each run of the script makes one."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def loops() -> Iterator[list[asyncio.AbstractEventLoop]]:
    made: list[asyncio.AbstractEventLoop] = []
    yield made
    for loop in made:
        loop.close()


@pytest.fixture(autouse=True)
def loop_stays(loops: list[asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(work: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        loop.run_until_complete(work)

    monkeypatch.setattr("tests.hardware.__main__.asyncio.run", run)
