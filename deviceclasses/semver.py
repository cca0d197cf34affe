"""Semantic versions 2.0.0, as strict as the API server is with version attributes.

A version with a leading zero (535.104.05) or with four parts is none: the server refuses the whole slice for it, so
it is checked before anything is sent.
"""

import functools
import re
from dataclasses import dataclass

_NUMBER = r"(0|[1-9][0-9]*)"
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_STRICT = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """Ordered by precedence, which leaves build metadata out; equal versions compare equal."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()

    def __lt__(self, other: "Version") -> bool:
        return self._key() < other._key()

    def __str__(self) -> str:
        suffix = f"-{'.'.join(self.prerelease)}" if self.prerelease else ""
        return f"{self.major}.{self.minor}.{self.patch}{suffix}"

    def _key(self) -> tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]:
        identifiers = tuple(
            (False, int(identifier), "") if identifier.isdigit() else (True, 0, identifier)
            for identifier in self.prerelease
        )
        return self.major, self.minor, self.patch, not self.prerelease, identifiers


def parse_version(text: str) -> Version:
    """Raises ValueError with what is wrong and how to write it."""
    match = _STRICT.fullmatch(text)
    if match is None:
        raise ValueError(f"parse version {text!r}: write major.minor.patch without leading zeros, such as 580.105.8")
    major, minor, patch, prerelease = match.groups()
    return Version(int(major), int(minor), int(patch), tuple(prerelease.split(".")) if prerelease else ())


def normalize_version(text: str) -> str:
    """CEL's semver(text, true): drops a leading v and leading zeros, adds missing minor and patch numbers."""
    parts = text.removeprefix("v").split(".", 2)
    parts = [_strip_zeros(part) for part in parts]
    if len(parts) < 3 and not parts[-1].isdigit():
        return text
    return ".".join([*parts, "0", "0"][: max(3, len(parts))])


def _strip_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else f"0{stripped}"
