"""Formats that many API fields share, checked as the API server checks them (k8s.io/apimachinery v0.36)."""

import re
from fractions import Fraction
from typing import Any

from gpuclaim.demo.apiserver_errors import FieldErrors

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME_PART = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = r"(0|[1-9]\d*)"
_PRE_RELEASE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE_RELEASE}(\.{_PRE_RELEASE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_QUANTITY = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)


def _text(rule: str, pattern: str, *examples: str) -> str:
    """How k8s.io/apimachinery words a failed pattern."""
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern}')"


_NAME_PART_FORMAT = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_NAME_PART_RULE = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_NAME_PART_TEXT = _text(_NAME_PART_RULE, _NAME_PART_FORMAT, "MyName", "my.name", "123-abc")
_LABEL_VALUE_TEXT = _text(
    f"a valid label must be an empty string or {_NAME_PART_RULE.removeprefix('must ')}",
    f"({_NAME_PART_FORMAT})?",
    *("MyValue", "my_value", "12345"),
)
_DNS_LABEL_TEXT = _text(
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character",
    _LABEL,
    *("my-name", "123-abc"),
)
_DNS_SUBDOMAIN_TEXT = _text(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character",
    rf"{_LABEL}(\.{_LABEL})*",
    "example.com",
)
_C_IDENTIFIER_TEXT = _text(
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    "characters or '_'",
    "[A-Za-z_][A-Za-z0-9_]*",
    *("my_name", "MY_NAME", "MyName"),
)
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def check_dns_label(errors: FieldErrors, field: str, value: str) -> None:
    if len(value) > 63:
        errors.invalid(field, value, "must be no more than 63 characters")
    if not _DNS_LABEL.fullmatch(value):
        errors.invalid(field, value, _DNS_LABEL_TEXT)


def check_dns_subdomain(errors: FieldErrors, field: str, value: str) -> None:
    if len(value) > 253:
        errors.invalid(field, value, "must be no more than 253 characters")
    if not _DNS_SUBDOMAIN.fullmatch(value):
        errors.invalid(field, value, _DNS_SUBDOMAIN_TEXT)


def check_label_key(errors: FieldErrors, field: str, value: str) -> None:
    """A qualified name: an optional DNS subdomain, a slash, a name."""
    *prefix, name = value.split("/")
    if len(prefix) > 1:
        errors.invalid(field, value, f"a valid label key {_NAME_PART_TEXT}")
        return
    if prefix:
        check_dns_subdomain(errors, field, prefix[0])
    if not name:
        errors.invalid(field, value, "name part must be non-empty")
    if len(name) > 63:
        errors.invalid(field, value, "name part must be no more than 63 characters")
    if not _NAME_PART.fullmatch(name):
        errors.invalid(field, value, f"name part {_NAME_PART_TEXT}")


def check_label_value(errors: FieldErrors, field: str, value: str) -> None:
    if len(value) > 63:
        errors.invalid(field, value, "must be no more than 63 characters")
    if value and not _NAME_PART.fullmatch(value):
        errors.invalid(field, value, _LABEL_VALUE_TEXT)


def check_driver_name(errors: FieldErrors, field: str, value: str) -> None:
    if not value:
        errors.required(field)
        return
    if len(value) > 63:
        errors.too_long(field, 63)
    check_dns_subdomain(errors, field, value.lower())


def check_c_identifier(errors: FieldErrors, field: str, value: str) -> None:
    if len(value) > 32:
        errors.too_long(field, 32)
    if not _C_IDENTIFIER.fullmatch(value):
        errors.invalid(field, value, _C_IDENTIFIER_TEXT)


def check_qualified_name(errors: FieldErrors, field: str, value: str) -> None:
    """The name of an attribute or capacity: ``[domain/]identifier``."""
    domain, slash, identifier = value.rpartition("/")
    if slash and not domain:
        errors.invalid(field, "", "the domain must not be empty")
    elif slash:
        check_driver_name(errors, field, domain)
    if slash and not identifier:
        errors.invalid(field, "", "the name must not be empty")
    else:
        check_c_identifier(errors, field, identifier)


def is_semver(value: str) -> bool:
    return _SEMVER.fullmatch(value) is not None


def is_extended_resource_name(value: str) -> bool:
    if "/" not in value or "kubernetes.io/" in value or value.startswith("requests."):
        return False
    errors = FieldErrors()
    check_label_key(errors, "", f"requests.{value}")
    return not errors


def parse_quantity(value: object) -> Fraction | None:
    """The value of a quantity, None when it is none. JSON numbers are quantities too."""
    match = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if match is None:
        return None
    sign, digits, suffix = match.group(1), match.group(2), match.group(3) or ""
    number = Fraction(digits.rstrip(".") or "0")
    if suffix in _BINARY_SUFFIXES:
        number *= 1 << _BINARY_SUFFIXES[suffix]
    elif suffix in _DECIMAL_SUFFIXES:
        number *= Fraction(10) ** _DECIMAL_SUFFIXES[suffix]
    else:
        number *= Fraction(10) ** int(suffix[1:])
    return -number if sign == "-" else number


def canonical_quantity(value: Any) -> str:
    """A quantity as the API server writes it back: "81920Mi" becomes "80Gi", "1000" becomes "1k". Exponents
    ("1e3") are written with suffixes here, unlike there."""
    number = parse_quantity(value)
    if number is None:
        raise ValueError(f"not a quantity: {value!r}")
    if number == 0:
        return "0"
    if isinstance(value, str) and value.endswith("i") and abs(number) >= 1024 and number.denominator == 1:
        return _largest(number, {s: Fraction(1 << power) for s, power in {"": 0, **_BINARY_SUFFIXES}.items()})
    return _largest(number, {s: Fraction(10) ** power for s, power in _DECIMAL_SUFFIXES.items()})


def _largest(number: Fraction, units: dict[str, Fraction]) -> str:
    """With the largest suffix that leaves a whole number."""
    for suffix, unit in sorted(units.items(), key=lambda item: item[1], reverse=True):
        if (number / unit).denominator == 1:
            return f"{number / unit}{suffix}"
    smallest, unit = min(units.items(), key=lambda item: item[1])
    return f"{-(-number // unit)}{smallest}"
