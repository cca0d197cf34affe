"""Machine profiles: all shipped ones load and agree with themselves; a wrong one says what is wrong and where."""

from pathlib import Path

import pytest

from kubeletplugin.nvml.simulated import mig
from kubeletplugin.nvml.simulated.profile import MACHINES, MachineError, load_profile, machine_names
from kubeletplugin.nvml.simulated.state import first_state

each_machine = pytest.mark.parametrize("machine", machine_names())


def test_ships_eighteen_machines() -> None:
    assert len(machine_names()) == 18
    assert "dgx-h100" in machine_names()


@each_machine
def test_a_profile_is_named_after_its_machine_and_numbers_its_gpus(machine: str) -> None:
    profile = load_profile(machine)
    assert profile.id == machine
    assert profile.gpus
    assert len({gpu.uuid for gpu in profile.gpus}) == len(profile.gpus)
    assert [gpu.pci_bus_id for gpu in profile.gpus] == sorted(gpu.pci_bus_id for gpu in profile.gpus)


@each_machine
def test_a_profile_says_who_can_hold_how_many_partitions(machine: str) -> None:
    """``max`` is measured, the rules of placement and engines are ours: they must come to the same number."""
    profile = load_profile(machine)
    state = first_state(machine, profile)
    for gpu in state.gpus[:1]:
        spec = profile.model_of(gpu.slot).mig
        gpu.mig_enabled = True
        counted = {entry.profile.name: mig.remaining_capacity(gpu, spec, entry) for entry in spec.gpu_instance_profiles}
        assert counted == {entry.profile.name: entry.profile.max for entry in spec.gpu_instance_profiles}


@each_machine
def test_a_gpu_instance_profile_has_a_compute_instance_of_its_own_size(machine: str) -> None:
    for model in load_profile(machine).models.values():
        for entry in model.mig.gpu_instance_profiles:
            assert entry.full_compute_profile.slices == entry.profile.slices


def test_loads_a_profile_from_a_file(tmp_path: Path) -> None:
    copy = tmp_path / "mine.yaml"
    copy.write_bytes((MACHINES / "l4x1.yaml").read_bytes())
    assert load_profile(str(copy)).id == "l4x1"


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        ("dgx-h10", "find machine 'dgx-h10': no such profile (did you mean dgx-h100?); give a file or one of a30x2, "),
        ("zzz", "find machine 'zzz': no such profile; give a file or one of a30x2, "),
        ("mine.yaml", "read machine profile mine.yaml: no such file; "),
    ],
)
def test_an_unknown_machine_is_named_with_the_nearest(machine: str, message: str) -> None:
    with pytest.raises(MachineError) as raised:
        load_profile(machine)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("smCount: 58", "smcount: 58", "models.l4.smCount: field required (and 1 more)"),
        ("smCount: 58", 'smCount: "58"', "models.l4.smCount: input should be a valid integer"),
        ("smCount: 58", "smCount: 58\n    surprise: 1", "models.l4.surprise: extra inputs are not permitted"),
        ('model: "l4"', 'model: "l40"', "gpus.0.model: no model 'l40' (did you mean l4?)"),
        ("- index: 0", "- index: 1", "gpus.0.index: 1 is not its position in the list"),
        ("gpus:", "gpus: [", "line "),
    ],
)
def test_a_wrong_profile_says_where_on_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    text = (MACHINES / "l4x1.yaml").read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(MachineError) as raised:
        load_profile(str(path))
    assert str(raised.value).startswith(f"read machine profile {path}: {message}")
    assert "\n" not in str(raised.value)
