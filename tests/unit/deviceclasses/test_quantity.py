"""The quantity grammar against apimachinery's own examples and edge cases."""

from fractions import Fraction

import pytest

from deviceclasses.quantity import QuantityError, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("81559Mi", 81559 * 2**20),
        ("40Gi", 40 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1.5G", 1_500_000_000),
        ("200k", 200_000),
        ("500m", Fraction(1, 2)),
        ("100n", Fraction(1, 10**7)),
        ("1u", Fraction(1, 10**6)),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("12.E+2", 1200),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+5", 5),
        ("-5Mi", -5 * 2**20),
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("9999999999Ei", 2**63 - 1),
        ("9999999999E", 9999999999 * 10**18),
    ],
)
def test_value(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", " ", "Mi", "Three", "1,3G", "200K", "1 Gi", "1Gi ", "1kb", "1.2.3", "--1", "1mi", "1e", "\u0661", "."]
)
def test_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="parse quantity"):
        parse_quantity(text)


def test_a_huge_exponent_is_refused_at_once() -> None:
    with pytest.raises(QuantityError, match="out of range"):
        parse_quantity("1e999999999")


def test_an_unknown_suffix_lists_the_known_ones() -> None:
    with pytest.raises(QuantityError, match=r"unknown suffix 'K', known are Ki, Mi"):
        parse_quantity("200K")
