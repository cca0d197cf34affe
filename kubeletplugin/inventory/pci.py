"""One spelling for PCI addresses: sysfs's, ``0000:1b:00.0``.

NVML prints eight digits of domain in upper case, lspci leaves the domain out, people leave the function out.
"""

import re

_ADDRESS = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE | re.ASCII,
)


def normalise(text: str) -> str | None:
    """``text`` in sysfs's spelling, or None when it isn't a PCI address. A domain needs more than four digits only
    when it is that large (VMD and some Arm hosts)."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = _numbers(match)
    if device > 0x1F:
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def sort_key(address: str) -> tuple[int, int, int, int]:
    """Bus order. An address that isn't one (NVML gave nonsense) comes last."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return (2**32, 0, 0, 0)
    return _numbers(match)


def _numbers(match: re.Match[str]) -> tuple[int, int, int, int]:
    parts = match.group("domain", "bus", "device", "function")
    domain, bus, device, function = (int(part or "0", 16) for part in parts)
    return domain, bus, device, function
