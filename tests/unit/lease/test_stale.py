"""When a heartbeat counts as over."""

import pytest

from kubeletplugin.lease.stale import StaleDetector, StaleTiming
from tests.fakes.clock import VirtualClock

pytestmark = pytest.mark.anyio

TIMING = StaleTiming(looks=3, interval=1.0, pause=3.0)


@pytest.mark.parametrize(
    ("looks", "stale"),
    [
        pytest.param([(0, "a"), (1, "a"), (1, "a")], True, id="same value three times, a second apart"),
        pytest.param([(0, "a"), (1, "a")], False, id="too few looks"),
        pytest.param([(0, "a"), (1, "a"), (1, "b")], False, id="it moved"),
        pytest.param([(0, "a"), (1, "b"), (1, "b"), (1, "b")], True, id="stopped later"),
        pytest.param([(0, "a")] + [(0.1, "a")] * 15, False, id="looks in quick succession are one"),
        pytest.param([(0, "a")] + [(0.1, "a")] * 25, True, id="quick looks over two seconds are three"),
        pytest.param([(0, "a"), (1, "a"), (60, "a")], False, id="the looker itself was stopped"),
        pytest.param([(0, "a"), (60, "a"), (1, "a"), (1, "a")], True, id="stopped, then three looks"),
        pytest.param([(0, None), (1, None), (1, None)], True, id="no value is a value"),
    ],
)
async def test_stale(looks: list[tuple[float, str | None]], stale: bool) -> None:
    clock = VirtualClock(start=0.0)
    detector = StaleDetector(clock, TIMING)
    verdict = False
    for wait, value in looks:
        await clock.advance(wait)
        verdict = detector.look(value)
    assert verdict is stale
