"""The real implementation over the mock library, and the simulator, say the same about every shipped machine.

Either reads the machine profile by itself; one goes through nvidia-ml-py, C structs and symbols, the other doesn't. A
difference is a mistake in one of the two. Where the profile says null, nothing is compared.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.nvml.api import Memory
from kubeletplugin.nvml.simulated import open_simulated
from kubeletplugin.nvml.simulated.profile import load_profile, machine_names
from kubeletplugin.nvml.simulated.schema import MachineProfile
from tests.contract.nvml.snapshot import snapshot
from tests.nvmlmock.mock import MakeMock, OpenReal


@pytest.mark.parametrize("machine", machine_names())
def test_same_answers(machine: str, make_mock: MakeMock, open_real_nvml: OpenReal, tmp_path: Path) -> None:
    profile = load_profile(machine)
    real = snapshot(open_real_nvml(make_mock(profile)))
    nvml = open_simulated(machine, tmp_path / "state")
    nvml.init()
    simulated = snapshot(nvml)
    assert known(profile, real) == known(profile, simulated)


def known(profile: MachineProfile, answers: dict[str, object]) -> dict[str, object]:
    """``answers`` without what the profile leaves open."""
    kept = dict(answers)
    for gpu in profile.gpus:
        model = profile.models[gpu.model]
        if gpu.module_id is None and "nvmlDeviceGetModuleId" not in model.not_supported:
            del kept[f"{gpu.index}.module_id"]
        memory = kept[f"{gpu.index}.memory_info"]
        if model.memory.reserved_mib is None and isinstance(memory, Memory):
            kept[f"{gpu.index}.memory_info"] = replace(memory, free=0, used=0)
    return kept
