"""Strict semantic versions, their precedence, and the normalising that CEL offers."""

import itertools

import pytest

from deviceclasses.semver import Version, normalize_version, parse_version

ASCENDING = [
    "0.1.0",
    "1.0.0-alpha",
    "1.0.0-alpha.1",
    "1.0.0-alpha.beta",
    "1.0.0-beta",
    "1.0.0-beta.2",
    "1.0.0-beta.11",
    "1.0.0-rc.1",
    "1.0.0",
    "1.0.1",
    "580.105.8",
]
"""The order of semver.org, section 11."""


@pytest.mark.parametrize(("lower", "higher"), list(itertools.combinations(ASCENDING, 2)))
def test_precedence(lower: str, higher: str) -> None:
    assert parse_version(lower) < parse_version(higher)
    assert parse_version(higher) > parse_version(lower)


def test_build_metadata_makes_no_difference() -> None:
    assert parse_version("1.2.3+build.5") == parse_version("1.2.3") == Version(1, 2, 3)


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "535.104.05", "550.54.14.1", "v1.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "1.0.0 ", "a.b.c"]
)
def test_refused(text: str) -> None:
    with pytest.raises(ValueError, match="leading zeros"):
        parse_version(text)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("v1.0.0", "1.0.0"),
        ("1.0", "1.0.0"),
        ("1", "1.0.0"),
        ("01.01.01", "1.1.1"),
        ("535.104.05", "535.104.5"),
        ("00.00.00", "0.0.0"),
        ("1.2-rc", "1.2-rc"),
        ("1.2.-rc", "1.2.0-rc"),
        ("1.2.003-rc", "1.2.3-rc"),
    ],
)
def test_normalize(text: str, normalized: str) -> None:
    assert normalize_version(text) == normalized
