"""MIG layouts by flag and by file."""

from pathlib import Path

import pytest

from kubeletplugin.nvml.simulated import LayoutError, load_layout, parse_mig_flag
from kubeletplugin.nvml.simulated.layout import MigLayout, Partition, apply_layout
from kubeletplugin.nvml.simulated.profile import load_profile
from kubeletplugin.nvml.simulated.state import GpuState, NodeState, first_state


def laid_out(machine: str, layout: MigLayout) -> NodeState:
    profile = load_profile(machine)
    state = first_state(machine, profile)
    apply_layout(state, profile, layout)
    return state


def partitions(gpu: GpuState) -> list[tuple[int, int]]:
    """(profile id, start) of each, in order of the start."""
    return [(each.profile_id, each.start) for each in gpu.gpu_instances]


def test_reads_flags() -> None:
    one = parse_mig_flag("0=1g.10gb, 3g.40gb:4 ;2=;all=7g.80gb")
    assert one == {
        0: (Partition("1g.10gb"), Partition("3g.40gb", 4)),
        2: (),
        "all": (Partition("7g.80gb"),),
    }
    assert parse_mig_flag(["0=1g.10gb,3g.40gb:4", "2=", "all=7g.80gb"]) == one


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("1g.10gb", "read MIG layout '1g.10gb': want GPU=PROFILE,PROFILE, for example 0=1g.10gb,3g.40gb"),
        ("gpu0=1g.10gb", "read MIG layout 'gpu0=1g.10gb': 'gpu0' is no GPU; give an index or all"),
        ("0=1g.10gb;0=", "read MIG layout '0=': GPU 0 is given twice"),
        ("0=1g.10gb:x", "read MIG layout '0=1g.10gb:x': 'x' is no placement start; want PROFILE:START"),
    ],
)
def test_a_wrong_flag_says_what_is_wanted(flag: str, message: str) -> None:
    with pytest.raises(LayoutError) as raised:
        parse_mig_flag(flag)
    assert str(raised.value) == message


def test_partitions_are_placed_where_the_driver_would_put_them() -> None:
    state = laid_out("dgx-h100", parse_mig_flag("0=1g.10gb,3g.40gb;1="))
    assert partitions(state.gpus[0]) == [(9, 0), (19, 6)]
    assert [len(each.compute_instances) for each in state.gpus[0].gpu_instances] == [1, 1]
    assert state.gpus[1].mig_enabled
    assert partitions(state.gpus[1]) == []
    assert not state.gpus[2].mig_enabled


def test_partitions_are_arranged_so_that_all_fit() -> None:
    # In the driver's order the four small ones would take both halves.
    state = laid_out("dgx-h100", parse_mig_flag("0=1g.10gb,1g.10gb,1g.10gb,1g.10gb,3g.40gb"))
    assert partitions(state.gpus[0]) == [(19, 0), (19, 1), (19, 2), (19, 3), (9, 4)]


def test_all_means_every_gpu_that_is_not_named_itself() -> None:
    state = laid_out("dgx-h100", parse_mig_flag("all=7g.80gb;3=1g.10gb"))
    assert [partitions(gpu) for gpu in state.gpus] == [[(19, 6)] if gpu.slot == 3 else [(0, 0)] for gpu in state.gpus]


@pytest.mark.parametrize(
    ("machine", "flag", "message"),
    [
        (
            "dgx-h100",
            "0=1g.5gb",
            (
                "lay out GPU 0: no MIG profile '1g.5gb' (did you mean 1g.10gb?); it has 1g.10gb, 1g.10gb+me, 1g.20gb, "
                "2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb"
            ),
        ),
        ("dgx-h100", "9=1g.10gb", "lay out GPU 9: machine dgx-h100 has GPUs 0 to 7"),
        ("t4x4", "0=1g.10gb", "lay out GPU 0: Tesla T4 can't do MIG"),
        ("t4x4", "all=1g.10gb", "lay out all GPUs: machine t4x4 has none that can do MIG"),
        ("dgx-h100", "0=3g.40gb:2", "lay out GPU 0: 3g.40gb can't start at 2; it can at 0, 4"),
        (
            "dgx-h100",
            "0=3g.40gb,4g.40gb,1g.10gb",
            "lay out GPU 0 as 3g.40gb, 4g.40gb, 1g.10gb: no free placement for 1g.10gb beside 4g.40gb:0, 3g.40gb:4",
        ),
        (
            "dgx-h100",
            "0=1g.10gb:1,4g.40gb",
            "lay out GPU 0 as 1g.10gb:1, 4g.40gb: no free placement for 4g.40gb beside 1g.10gb:1",
        ),
    ],
)
def test_an_impossible_layout_says_why(machine: str, flag: str, message: str) -> None:
    with pytest.raises(LayoutError) as raised:
        laid_out(machine, parse_mig_flag(flag))
    assert str(raised.value) == message


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text("0: [2g.20gb:0, {profile: 1g.10gb, start: 2}, {profile: 3g.40gb}]\n2: []\nall:\n")
    layout = load_layout(path)
    assert layout == {
        0: (Partition("2g.20gb", 0), Partition("1g.10gb", 2), Partition("3g.40gb")),
        2: (),
        "all": (),
    }
    assert partitions(laid_out("dgx-h100", layout).gpus[0]) == [(14, 0), (19, 2), (9, 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1g.10gb", "want a map of GPU index to a list of profiles"),
        ("x: [1g.10gb]", "'x' is no GPU; give an index or all"),
        ("0: 1g.10gb", "want a list of profiles, not '1g.10gb'"),
        ("0: [{name: 1g.10gb}]", "GPU 0: want a profile's name or {profile: NAME, start: N}, not {'name': '1g.10gb'}"),
        ("0: [", "while parsing a flow node"),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "layout.yaml"
    path.write_text(text)
    with pytest.raises(LayoutError) as raised:
        load_layout(path)
    assert str(raised.value).startswith(f"read MIG layout {path}: {message}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="No such file"):
        load_layout(tmp_path / "layout.yaml")
