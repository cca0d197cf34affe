"""What a look at processes means for a device that its holder has let go."""

import pytest

from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.prepare.leftovers import leftover
from kubeletplugin.prepare.ports import Look

GPU = HeldDevice("gpu-0", "GPU-0", "GPU-0", True)


def pids(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("look", "pods", "reason"),
    [
        (Look(), None, ""),
        (Look(alive={"a": pids(1)}), {"a"}, "1 process of its former pods still running"),
        (Look(alive={"a": pids(1, 2), "b": pids(3)}), {"a", "b"}, "3 processes of its former pods still running"),
        (Look(alive={"foreign": pids(1)}), None, ""),
        (Look(on_device={"GPU-0": {"foreign": pids(4)}}), set(), "1 process of its former pods still running"),
        (Look(on_device={"GPU-0": {"sharer": pids(4)}}), None, ""),
        (Look(on_device={"GPU-1": {"foreign": pids(4)}}), None, ""),
        (Look(blind="no cgroups"), {"a", "b"}, "can't see whether processes are left (no cgroups)"),
        (
            Look(alive={"a": pids(1)}, blind_devices={"GPU-0": "no NVML"}),
            {"a"},
            "1 process of its former pods still running; can't see whether processes are left (no NVML)",
        ),
        (Look(blind_devices={"GPU-0": "no NVML"}), set(), "can't see whether processes are left (no NVML)"),
        (Look(blind_devices={"GPU-1": "no NVML"}), None, ""),
    ],
)
def test_leftover(look: Look, pods: set[str] | None, reason: str) -> None:
    found = leftover(look, GPU, ["a", "b"], ["sharer"])
    assert (found.pods if found else None) == pods
    assert (found.reason if found else "") == reason


def test_a_former_pod_that_shares_the_device_again_still_counts() -> None:
    found = leftover(Look(on_device={"GPU-0": {"a": pids(7)}}), GPU, ["a"], ["a"])
    assert found is not None
    assert found.pids == {"a": {7}}
