"""A request without an answer is told of once, and that the server answers again."""

import asyncio
import logging

import pytest

from kubeapi.slowness import Slowness

pytestmark = pytest.mark.anyio

log = logging.getLogger("slowness")


async def test_told_once_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    slowness = Slowness(log, 0.001)

    async def ask(name: str, seconds: float, error: Exception | None = None) -> None:
        with slowness.watched("http://server", "GET", f"/{name}"):
            await asyncio.sleep(seconds)
            if error:
                raise error

    await ask("quick", 0)
    for name in ("first", "second"):
        with pytest.raises(TimeoutError):
            await ask(name, 0.01, TimeoutError())
    told = [record.getMessage() for record in caplog.records]
    assert told == ["API server http://server hasn't answered GET /first for 0.001 s; waiting"]
    await ask("third", 0)
    await ask("fourth", 0)
    assert [record.getMessage() for record in caplog.records][1:] == ["API server http://server answers again"]
