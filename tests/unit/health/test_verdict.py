"""Health verdicts: only what was seen."""

from dataclasses import replace

import pytest

from kubeletplugin.health.verdict import LOST, NO_ANSWER, Health, Verdict, judge
from kubeletplugin.inventory.model import Device, DeviceKind, Inventory, MigIdentity

GPU = Device("gpu-0", DeviceKind.GPU, "GPU-a", "GPU-a", 0, 0, "0000:1b:00.0", {}, {})
PART = replace(
    GPU, name="gpu-1-mig-1g10gb-19-0", kind=DeviceKind.MIG, uuid="MIG-b", gpu_uuid="GPU-b",
    mig=MigIdentity("1g.10gb", 19, 0, 1, 7, 0),
)  # fmt: skip
HUNG = replace(GPU, problem="it hangs")
FELL_OFF = replace(PART, problem="fell off")
DESTROYED = replace(PART, problem="destroyed")


@pytest.mark.parametrize(
    ("device", "answered", "lost", "verdict"),
    [
        pytest.param(GPU, "GPU-a", "", Verdict(Health.HEALTHY), id="NVML answered"),
        pytest.param(PART, "GPU-b", "", Verdict(Health.HEALTHY), id="a partition answers through its GPU"),
        pytest.param(GPU, "GPU-b", "", Verdict(Health.UNKNOWN, NO_ANSWER), id="NVML did not answer"),
        pytest.param(HUNG, "", "", Verdict(Health.UNKNOWN, "it hangs"), id="not answered, reason known"),
        pytest.param(GPU, "", "GPU-a", Verdict(Health.UNHEALTHY, LOST), id="lost"),
        pytest.param(FELL_OFF, "", "GPU-b", Verdict(Health.UNHEALTHY, "fell off"), id="lost with its GPU"),
        pytest.param(DESTROYED, "GPU-b", "", Verdict(Health.UNHEALTHY, "destroyed"), id="partition gone"),
        pytest.param(
            DESTROYED, "", "MIG-b", Verdict(Health.UNHEALTHY, "destroyed"), id="partition gone, now its GPU hangs too"
        ),
        pytest.param(PART, "GPU-b", "MIG-c", Verdict(Health.HEALTHY), id="a neighbour is gone"),
    ],
)
def test_judge(device: Device, answered: str, lost: str, verdict: Verdict) -> None:
    look = Inventory("580", (device,), answered=frozenset(answered.split()), lost=frozenset(lost.split()))
    assert judge(device, look) == verdict
