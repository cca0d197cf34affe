"""Which devices the ids of a device plugin mean.

Devices are known by tokens: a UUID, or ``nvidia<minor>`` for plugins that name them so. Whose resource an id is of
doesn't matter: NVIDIA's plugin isn't the only one that hands out its GPUs.
"""

import re
from collections.abc import Iterable

VENDOR = "nvidia.com/"
"""Of resources whose devices are NVIDIA's for sure, whatever their ids look like."""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_NODE = re.compile(r"(?:^|/)(nvidia\d+)(?=/|$)")
_PREFIX = len("GPU-")


def tokens(ids: Iterable[str], more: Iterable[str] = ()) -> frozenset[str]:
    """The devices that a plugin's ids mean, replicas (``UUID::0``, ``UUID-0``) included; else those that ``more`` texts
    tell of: what Allocate answered. A device node comes last, since a partition's container gets its whole GPU's."""
    texts = (tuple(ids), tuple(more))
    for pattern in (_UUID, _NODE):
        for part in texts:
            if found := frozenset(_as_nvml_writes(match) for text in part for match in pattern.findall(text)):
                return found
    return frozenset()


def _as_nvml_writes(token: str) -> str:
    return token if token.startswith("nvidia") else token[:_PREFIX].upper() + token[_PREFIX:].lower()
