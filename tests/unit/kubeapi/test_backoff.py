"""Delays between tries."""

import random

from kubeapi.backoff import Backoff


def test_delays_double_up_to_the_maximum_and_are_spread() -> None:
    backoff = Backoff(initial=1, maximum=5, rng=random.Random(3))
    delays = [backoff.next() for _ in range(5)]
    for nominal, delay in zip((1, 2, 4, 5, 5), delays, strict=True):
        assert nominal / 2 <= delay <= nominal
    assert len({round(d / n, 6) for n, d in zip((1, 2, 4, 5, 5), delays, strict=True)}) == 5


def test_a_success_starts_from_the_shortest() -> None:
    backoff = Backoff(initial=1, maximum=64, rng=random.Random(3))
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1


def test_never_before_the_server_allows() -> None:
    assert Backoff(initial=1, rng=random.Random(3)).next(at_least=30) == 30
