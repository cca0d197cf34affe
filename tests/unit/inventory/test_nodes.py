"""Device nodes and /dev/char links on a headless node."""

import logging
import os
import stat
from pathlib import Path

import pytest

from kubeletplugin.inventory import nodes
from kubeletplugin.inventory.nodes import DeviceNodeKeeper, NodePlace, ensure_char_links, ensure_device_nodes

PROC_DEVICES = """\
Character devices:
  1 mem
195 {frontend}
{more}236 nvidia-caps
510 nvidia-uvm

Block devices:
195 nvidia-x
"""


def place(dev: Path) -> NodePlace:
    """The host's own /dev, as on a node whose driver is installed on the host."""
    return NodePlace(dev, "/dev", dev)


def can_make_nodes(folder: Path) -> bool:
    try:
        os.mknod(folder / "probe", stat.S_IFCHR | 0o600, os.makedev(195, 0))
    except PermissionError:
        return False
    (folder / "probe").unlink()
    return True


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    if not can_make_nodes(folder):
        pytest.skip("this user may not make device nodes")
    return folder


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return proc_tree(tmp_path)


def proc_tree(tmp_path: Path, frontend: str = "nvidia-frontend", more: str = "", params: str = "") -> Path:
    folder = tmp_path / "proc"
    (folder / "driver" / "nvidia").mkdir(parents=True, exist_ok=True)
    (folder / "devices").write_text(PROC_DEVICES.format(frontend=frontend, more=more))
    if params:
        (folder / "driver" / "nvidia" / "params").write_text(params)
    return folder


def numbers(dev: Path) -> dict[str, tuple[int, int]]:
    return {
        path.name: (os.major(path.stat().st_rdev), os.minor(path.stat().st_rdev))
        for path in dev.iterdir()
        if stat.S_ISCHR(path.stat().st_mode)
    }


ALL = {
    "nvidia0": (195, 0),
    "nvidia5": (195, 5),
    "nvidiactl": (195, 255),
    "nvidia-modeset": (195, 254),
    "nvidia-uvm": (510, 0),
    "nvidia-uvm-tools": (510, 1),
}


@pytest.mark.parametrize(
    ("frontend", "more"), [("nvidia-frontend", ""), ("nvidia", "195 nvidia-modeset\n195 nvidiactl\n")]
)
def test_makes_what_is_missing_and_links_it(frontend: str, more: str, dev: Path, tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, frontend, more)
    report = ensure_device_nodes(place(dev), proc, [0, 5])
    assert numbers(dev) == ALL
    assert report.problems == {}
    assert set(report.made) == {str(dev / name) for name in ALL}
    assert {link.name: str(link.readlink()) for link in (dev / "char").iterdir()} == {
        f"{major}:{minor}": f"../{name}" for name, (major, minor) in ALL.items()
    }
    assert all(stat.S_IMODE((dev / name).stat().st_mode) == 0o666 for name in ALL)


def test_a_second_time_nothing_is_done(dev: Path, proc: Path) -> None:
    ensure_device_nodes(place(dev), proc, [0])
    report = ensure_device_nodes(place(dev), proc, [0])
    assert (report.made, report.linked, dict(report.problems)) == ((), (), {})


def test_a_node_with_a_stale_number_is_made_anew(dev: Path, proc: Path) -> None:
    os.mknod(dev / "nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(508, 0))
    report = ensure_device_nodes(place(dev), proc, [])
    assert str(dev / "nvidia-uvm") in report.made
    assert numbers(dev)["nvidia-uvm"] == (510, 0)


def test_the_drivers_own_mode_is_followed(dev: Path, tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, params="DeviceFileMode: 432\nDeviceFileUID: 0\nDeviceFileGID: 0\nModifyDeviceFiles: 1\n")
    ensure_device_nodes(place(dev), proc, [0])
    assert stat.S_IMODE((dev / "nvidia0").stat().st_mode) == 0o660


def test_hands_off_when_the_driver_says_so(dev: Path, tmp_path: Path) -> None:
    proc = proc_tree(tmp_path, params="ModifyDeviceFiles: 0\n")
    os.mknod(dev / "nvidia-uvm", stat.S_IFCHR | 0o666, os.makedev(508, 0))
    report = ensure_device_nodes(place(dev), proc, [0])
    assert numbers(dev) == {"nvidia-uvm": (508, 0)}
    missing, stale = (report.problems[str(dev / name)] for name in ("nvidia0", "nvidia-uvm"))
    for problem, number in ((missing, "mknod nvidia0 c 195 0"), (stale, "mknod nvidia-uvm c 510 0")):
        assert "NVreg_ModifyDeviceFiles=0" in problem
        assert number in problem
        assert "CAP_MKNOD" not in problem
    assert "508:0" in stale


def test_mig_capabilities_are_linked_too(dev: Path, proc: Path) -> None:
    (dev / "nvidia-caps").mkdir()
    os.mknod(dev / "nvidia-caps" / "nvidia-cap12", stat.S_IFCHR | 0o444, os.makedev(236, 12))
    linked, problems = ensure_char_links(place(dev))
    assert (linked, problems) == ((str(dev / "char" / "236:12"),), {})
    assert str((dev / "char" / "236:12").readlink()) == "../nvidia-caps/nvidia-cap12"


def test_a_link_that_points_elsewhere_is_replaced(dev: Path, proc: Path) -> None:
    (dev / "char").mkdir()
    (dev / "char" / "195:0").symlink_to("../gone")
    ensure_device_nodes(place(dev), proc, [0])
    assert str((dev / "char" / "195:0").readlink()) == "../nvidia0"


def test_a_module_that_is_not_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "devices").write_text("Character devices:\n195 nvidia\n")
    (tmp_path / "dev").mkdir()
    report = ensure_device_nodes(place(tmp_path / "dev"), tmp_path / "proc", [], make_node=lambda *_: None)
    assert report.problems[str(tmp_path / "dev" / "nvidia-uvm")].endswith("run modprobe nvidia-uvm")


def refuse(path: Path, mode: int, number: int) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_missing_rights_are_told_with_what_to_do(tmp_path: Path) -> None:
    proc = proc_tree(tmp_path)
    (tmp_path / "dev").mkdir()
    report = ensure_device_nodes(place(tmp_path / "dev"), proc, [0], make_node=refuse)
    problem = report.problems[str(tmp_path / "dev" / "nvidia0")]
    assert "minor 0" in problem
    assert "Operation not permitted" in problem
    assert "CAP_MKNOD" in problem


def test_a_file_in_the_way_is_told(dev: Path, proc: Path) -> None:
    (dev / "nvidia0").write_text("")
    report = ensure_device_nodes(place(dev), proc, [0])
    assert "remove it" in report.problems[str(dev / "nvidia0")]


def test_without_proc_nothing_is_made(tmp_path: Path) -> None:
    report = ensure_device_nodes(place(tmp_path / "dev"), tmp_path / "proc", [0], make_node=refuse)
    assert (report.made, report.linked) == ((), ())
    assert "modprobe nvidia" in report.problems[str(tmp_path / "dev" / "nvidia0")]


def test_each_problem_is_logged_once_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = DeviceNodeKeeper(lambda: place(tmp_path / "dev"), tmp_path / "proc")
    with caplog.at_level(logging.WARNING, logger=nodes.__name__):
        keeper.ensure([0])
        told = len(caplog.records)
        assert told == 4
        keeper.ensure([0])
        assert len(caplog.records) == told
        keeper.ensure([0, 1])
        assert len(caplog.records) == told + 1


# --- MIG capabilities ---


def partition(proc: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = proc / "driver/nvidia/capabilities/gpu0/mig" / name / "access"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def capability(minor: int, modify: int = 1) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: {modify}\n"


def test_existing_partitions_get_their_nodes_and_links(dev: Path, proc: Path) -> None:
    """A claim gets them by number, so nothing else makes the link that a daemon-reload needs."""
    partition(proc, {"gi9": capability(84), "gi9/ci0": capability(85), "gi10": "DeviceFileMode: 292\n"})
    report = ensure_device_nodes(place(dev), proc, [0])
    assert report.problems == {}
    assert numbers(dev / "nvidia-caps") == {"nvidia-cap84": (236, 84), "nvidia-cap85": (236, 85)}
    assert stat.S_IMODE((dev / "nvidia-caps/nvidia-cap84").stat().st_mode) == 0o444
    assert str((dev / "char/236:85").readlink()) == "../nvidia-caps/nvidia-cap85"
    assert ensure_device_nodes(place(dev), proc, [0]).made == ()


def test_hands_off_a_capability_of_which_the_driver_says_so(dev: Path, proc: Path) -> None:
    partition(proc, {"gi9": capability(84, modify=0)})
    report = ensure_device_nodes(place(dev), proc, [0])
    assert not (dev / "nvidia-caps").exists()
    assert "DeviceFileModify" in report.problems[str(dev / "nvidia-caps/nvidia-cap84")]


# --- what is there stays until there is something better ---


def test_a_stale_node_stays_where_a_better_one_cannot_be_made(dev: Path, proc: Path) -> None:
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(42, 0))
    report = ensure_device_nodes(place(dev), proc, [0], make_node=refuse)
    assert numbers(dev)["nvidia0"] == (42, 0)
    assert "CAP_MKNOD" in report.problems[str(dev / "nvidia0")]


def test_a_node_is_there_whole_or_not_at_all(dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = proc_tree(tmp_path, params="DeviceFileUID: 1234\nDeviceFileGID: 5678\n")
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(42, 0))

    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", forbid)
    ensure_device_nodes(place(dev), proc, [0])
    assert numbers(dev) == {"nvidia0": (42, 0)}
    assert [path.name for path in dev.iterdir()] == ["nvidia0", "char"]


def test_the_drivers_own_owner_is_followed(dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = proc_tree(tmp_path, params="DeviceFileUID: 1234\nDeviceFileGID: 5678\nDeviceFileMode: 432\n")
    owned: dict[str, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: owned.update({Path(path).name: (uid, gid)}))
    ensure_device_nodes(place(dev), proc, [0])
    assert owned == {f".{name}.gpuclaim": (1234, 5678) for name in ALL if name != "nvidia5"}


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_what_is_no_node_is_left_alone(kind: str, dev: Path, proc: Path) -> None:
    path = dev / "nvidia0"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    report = ensure_device_nodes(place(dev), proc, [0])
    assert "remove it" in report.problems[str(path)]
    assert "nvidia0" not in numbers_or_none(dev)
    assert path.is_symlink() or path.exists()


def numbers_or_none(dev: Path) -> set[str]:
    return {path.name for path in dev.iterdir() if path.exists() and stat.S_ISCHR(path.stat().st_mode)}


def test_a_node_that_vanishes_while_it_is_looked_at_raises_nothing(
    dev: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_device_nodes(place(dev), proc, [0, 1])
    real = Path.stat
    asked: list[str] = []

    def stat_once(path: Path, **options: bool) -> os.stat_result:
        asked.append(path.name)
        if path.name == "nvidia1":
            raise FileNotFoundError(2, "No such file or directory")
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat_once)
    (dev / "char/195:0").unlink()
    linked, problems = ensure_char_links(place(dev))
    assert "nvidia1" in asked
    assert (linked, problems) == ((str(dev / "char/195:0"),), {})


# --- a driver in a container ---


def test_a_containers_driver_has_its_own_nodes_and_the_host_the_links(dev: Path, proc: Path, tmp_path: Path) -> None:
    """systemd looks in the host's /dev/char, wherever the nodes are."""
    own = tmp_path / "driver/dev"
    own.mkdir(parents=True)
    report = ensure_device_nodes(NodePlace(own, "/run/nvidia/driver/dev", dev), proc, [0])
    assert report.problems == {}
    assert numbers(own)["nvidia0"] == (195, 0)
    assert numbers(dev) == {}
    assert not (own / "char").exists()
    assert str((dev / "char/195:0").readlink()) == "/run/nvidia/driver/dev/nvidia0"


def test_the_keeper_asks_each_time_where_the_nodes_are(dev: Path, proc: Path, tmp_path: Path) -> None:
    own = tmp_path / "driver/dev"
    own.mkdir(parents=True)
    places = [NodePlace(own, "/run/nvidia/driver/dev", dev), place(dev)]
    keeper = DeviceNodeKeeper(lambda: places[-1], proc)
    keeper.ensure([0])
    assert numbers(own) == {}
    places.pop()
    keeper.ensure([0])
    assert numbers(own)["nvidia0"] == (195, 0)
