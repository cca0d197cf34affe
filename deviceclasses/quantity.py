"""Kubernetes quantities: the full grammar of apimachinery's resource.Quantity, as exact fractions.

Used wherever a quantity is compared or checked without an API server: opaque configs, local validation of slices,
CEL. Like the server it rounds away from zero to nanos and caps binary suffixes at 2^63-1. Unlike the server it refuses
a number without digits ("Gi", "+"), which that takes for zero: it is a typo.
"""

import re
from fractions import Fraction

_BINARY = {suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_GRAMMAR = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]+)|([A-Za-z]*))", re.ASCII)
_NANOS = 10**9
_MAX_BINARY = Fraction(2**63 - 1)
_MAX_EXPONENT = 100
"""Ours: an exponent of a million would cost seconds of arithmetic and means nothing."""


class QuantityError(ValueError):
    """Not a quantity; the text says what to write instead."""


def parse_quantity(text: str) -> Fraction:
    """The value of ``text``. Raises QuantityError."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise QuantityError(f"parse quantity {text!r}: write a number with an optional suffix, such as 40Gi or 500m")
    sign, number, exponent, suffix = match.groups()
    value = _magnitude(text, Fraction(f"0{number}" if number.startswith(".") else number), exponent, suffix)
    nanos = value * _NANOS
    rounded = Fraction(-(-nanos.numerator // nanos.denominator), _NANOS)
    return -rounded if sign == "-" else rounded


def _magnitude(text: str, number: Fraction, exponent: str | None, suffix: str | None) -> Fraction:
    if exponent is not None:
        power = int(exponent[1:])
        if abs(power) > _MAX_EXPONENT:
            raise QuantityError(f"parse quantity {text!r}: the exponent is out of range")
        return number * Fraction(10) ** power
    if suffix in _BINARY:
        return min(number * _BINARY[suffix], _MAX_BINARY)
    factor = _DECIMAL.get(suffix or "")
    if factor is None:
        known = ", ".join((*_BINARY, *(unit for unit in _DECIMAL if unit)))
        raise QuantityError(f"parse quantity {text!r}: unknown suffix {suffix!r}, known are {known}")
    return number * factor
