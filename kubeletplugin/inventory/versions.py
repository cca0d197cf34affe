"""Versions as the API takes them: strict semver 2.0, whatever a driver prints.

The API server refuses a slice for one version value with a leading zero (``580.105.08``) or with two or four parts,
so nothing reaches it that didn't pass here. What comes after the third number is left out rather than kept as a
pre-release, because semver sorts a pre-release *before* its version; the untouched text is published beside it.
"""

import re

UNKNOWN_VERSION = "0.0.0"
"""For a core key whose version can't be read: no selector that asks for a minimum matches it, and none fails on a
missing key, which would cost pods all over the cluster."""

_LEADING_NUMBERS = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?=$|[.+\-_\s~])", re.ASCII)
_LARGEST = 2**64 - 1


def normalise(text: str) -> str | None:
    """``major.minor.patch`` without leading zeros, or None when ``text`` doesn't begin with a version."""
    match = _LEADING_NUMBERS.match(text.strip())
    if match is None:
        return None
    parts = [_number(part) for part in match.groups(default="0")]
    if None in parts:
        return None
    return ".".join(str(part) for part in parts)


def _number(digits: str) -> int | None:
    """The API server parses each part as 64 unsigned bits."""
    if len(digits) > 64:
        return None
    number = int(digits)
    return number if number <= _LARGEST else None


def from_cuda_driver(version: int) -> str:
    """NVML's 1000 * major + 10 * minor."""
    return f"{version // 1000}.{version % 1000 // 10}.0"
