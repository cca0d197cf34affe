"""What this API server won't take, learnt from its answers: fields that it drops, devices that it refuses.

A device with a dropped field is left out, because without the field it is another device (without its taint a broken
GPU would be handed out). A device that the server names in a refusal is left out alone, so that its neighbours are
published. Which fields are dropped is known for good, since it takes another server to change it; refusals are
forgotten when the device changes or after a while.
"""

import re
from collections.abc import Sequence

from kubeapi.errors import Invalid
from kubeletplugin.slices.compare import DroppedField, uses_field
from kubeletplugin.slices.pool import Pool, PoolContent
from kubeletplugin.slices.validate import Problem

_REFUSED_DEVICE = re.compile(r"spec\.devices\[(\d+)\]")


class Exclusions:
    def __init__(self) -> None:
        self._dropped: set[str] = set()
        self._refused: dict[str, dict[str, str]] = {}

    def apply(self, pool: str, content: PoolContent) -> tuple[PoolContent, tuple[Problem, ...]]:
        """``content`` without what the server won't take, and a problem for each device left out."""
        kept, problems = [], []
        refused = self._refused.get(pool, {})
        for device in content.devices:
            missing = sorted(field for field in self._dropped if uses_field(device, field))
            if missing:
                reason = f"the API server drops {', '.join(missing)}, without which it would be another device"
            else:
                reason = refused.get(repr(device), "")
            if reason:
                problems.append(Problem(device["name"], "", reason))
            else:
                kept.append(device)
        return PoolContent(tuple(kept), content.shared_counters), tuple(problems)

    def learn_dropped(self, dropped: Sequence[DroppedField]) -> bool:
        """Whether a device has to be left out that wasn't before."""
        new = {item.field for item in dropped if item.device} - self._dropped
        self._dropped |= new
        return bool(new)

    def learn_refused(self, pool: Pool, index: int, refusal: Invalid) -> bool:
        """Whether ``refusal``, of the slice ``index``, names devices, which are left out from now on."""
        devices = pool.slices[index].devices
        named = {int(number) for number in _REFUSED_DEVICE.findall(refusal.message)}
        refused = [devices[number] for number in sorted(named) if number < len(devices)]
        # Before that is the slice's name, another one at each create: the same problem would look new every time.
        _, _, causes = refusal.message.partition(" is invalid: ")
        for device in refused:
            reason = f"the API server refuses it: {causes or refusal.message}"
            self._refused.setdefault(pool.name, {})[repr(device)] = reason
        return bool(refused)

    def has_refused(self, pool: str) -> bool:
        return pool in self._refused

    def forget_refused(self, pool: str) -> None:
        self._refused.pop(pool, None)
