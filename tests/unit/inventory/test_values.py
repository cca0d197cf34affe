"""Versions, quantities and PCI addresses: text in, text out."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.inventory import pci, quantities, versions

SEMVER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("580.105.08", "580.105.8"),
        ("550.127.05", "550.127.5"),
        ("580.142", "580.142.0"),
        ("580.00", "580.0.0"),
        ("580", "580.0.0"),
        ("580.65.06.01", "580.65.6"),
        (" 595.91.07\n", "595.91.7"),
        ("570.86.15-0ubuntu1", "570.86.15"),
        ("565.57.01+build7", "565.57.1"),
        ("000.000.000", "0.0.0"),
        ("", None),
        ("N/A", None),
        ("v580.1", None),
        ("580x.1", None),
        ("Unknown Error", None),
        ("-1.2.3", None),
        ("18446744073709551615.0", "18446744073709551615.0.0"),
        ("18446744073709551616.0", None),
        ("9" * 5000, None),
    ],
)
def test_versions(raw: str, normal: str | None) -> None:
    assert versions.normalise(raw) == normal


@given(st.text())
def test_no_version_text_crashes_or_passes_unnormalised(raw: str) -> None:
    normal = versions.normalise(raw)
    assert normal is None or (SEMVER.fullmatch(normal) and len(normal) <= 64)


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0.0"), (12080, "12.8.0"), (12000, "12.0.0")])
def test_cuda_versions(number: int, version: str) -> None:
    assert versions.from_cuda_driver(number) == version


@pytest.mark.parametrize(
    ("value", "binary", "decimal"),
    [
        (0, "0", "0"),
        (1, "1", "1"),
        (132, "132", "132"),
        (1000, "1k", "1k"),
        (1024, "1Ki", "1024"),
        (85520809984, "81559Mi", "85520809984"),
        (127600748 * 1024, "127600748Ki", "130663165952"),
        (24 * 2**30, "24Gi", "25769803776"),
        (2**63, "8Ei", "9223372036854775808"),
    ],
)
def test_quantities(value: int, binary: str, decimal: str) -> None:
    assert quantities.binary(value) == binary
    assert quantities.decimal(value) == decimal


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        quantities.binary(-1)


@pytest.mark.parametrize(
    ("written", "sysfs"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("1b:0", "0000:1b:00.0"),
        ("0:1b:00", "0000:1b:00.0"),
        (" 0000:1b:1f.7 ", "0000:1b:1f.7"),
        ("0000:1b:20.0", None),
        ("0000:1b:00.8", None),
        ("GPU-1b", None),
        ("", None),
    ],
)
def test_pci_addresses(written: str, sysfs: str | None) -> None:
    assert pci.normalise(written) == sysfs


def test_addresses_sort_as_the_bus_does_and_nonsense_comes_last() -> None:
    addresses = ["10000:01:00.0", "garbage", "0000:c3:00.0", "0000:1b:00.1", "0000:1b:00.0", "0008:01:00.0"]
    assert sorted(addresses, key=pci.sort_key) == [
        "0000:1b:00.0",
        "0000:1b:00.1",
        "0000:c3:00.0",
        "0008:01:00.0",
        "10000:01:00.0",
        "garbage",
    ]
