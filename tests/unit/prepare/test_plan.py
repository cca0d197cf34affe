"""What is said of a device that can't be prepared now: whether to wait, and for which GPU."""

from typing import Any

import pytest

from kubeletplugin.errors import ClaimError
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, WithheldGpu
from kubeletplugin.prepare.plan import Unready, explain_unknown

ZERO = WithheldGpu(0, "GPU-0", "", "memory size can't be read")
MUTE = WithheldGpu(2, "", "", "no answer")
EXCLUDED = WithheldGpu(3, "GPU-3", "", "bad fan", excluded=True)
ONE = Device("gpu-1", DeviceKind.GPU, "GPU-1", "GPU-1", 1, 1, "", {}, {})


@pytest.mark.parametrize(
    ("name", "bindings", "withheld", "kind", "said"),
    [
        ("gpu-0", {"gpu-0": "GPU-0"}, (ZERO,), Unready, "gpu-0 isn't there: GPU 0 is withheld: memory size"),
        ("gpu-3", {"gpu-3": "GPU-3"}, (ZERO, EXCLUDED), ClaimError, "excluded on this node: bad fan"),
        ("gpu-4", {"gpu-4": "GPU-4"}, (ZERO,), Unready, "isn't there any more"),
        ("gpu-4", {"gpu-4": "GPU-4"}, (ZERO, MUTE), Unready, "it may be of GPU 2, which is withheld: no answer"),
        ("gpu-4", {"gpu-0": "GPU-0"}, (ZERO,), ClaimError, "gpu-4 doesn't exist on this node"),
        ("gpu-0", {}, (ZERO,), Unready, "it may be of GPU 0, which is withheld: memory size"),
        ("gpu-4", {}, (WithheldGpu(1, "GPU-1", "", "its partitions"),), ClaimError, "doesn't exist on this node"),
    ],
)
def test_only_a_gpu_that_may_be_the_one_is_blamed(
    name: str, bindings: dict[str, str], withheld: tuple[WithheldGpu, ...], kind: type[Any], said: str
) -> None:
    verdict = explain_unknown(name, Inventory("580.0", (ONE,), withheld), bindings)
    assert isinstance(verdict, kind)
    assert said in str(verdict)
