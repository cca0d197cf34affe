"""Kubernetes quantities in the form in which the API server prints them.

What is written must equal what is read back, or every comparison of a published slice with the wanted one finds a
difference and writes again.
"""

_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


def binary(value: int) -> str:
    """For bytes: the largest binary suffix that leaves a whole number (below 1 Ki decimal, as the server does)."""
    return decimal(value) if value < 1024 else _with_suffix(value, 1024, _BINARY_SUFFIXES)


def decimal(value: int) -> str:
    """For counts: the largest decimal suffix that leaves a whole number."""
    return _with_suffix(value, 1000, _DECIMAL_SUFFIXES)


def _with_suffix(value: int, base: int, suffixes: tuple[str, ...]) -> str:
    if value < 0:
        raise ValueError(f"a capacity can't be negative: {value}")
    step = 0
    while value and value % base == 0 and step + 1 < len(suffixes):
        value //= base
        step += 1
    return f"{value}{suffixes[step]}"
