"""`python -m tests.hardware` where there is no GPU: it says so, and its steps hold on a stand-in for NVML."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kubeletplugin.nvml.simulated import load_profile, open_node
from tests.contract.nvml.conftest import library_for
from tests.hardware import checks
from tests.hardware.__main__ import main
from tests.hardware.bundle import configuration, missing_paths, resolve
from tests.nvmlmock.mock import LibraryFor
from tests.nvmlmock.render import render

__all__ = ["library_for"]

MACHINE = "l4x1"
DONE = ["inventory", "slices", "driver spec", "prepare", "nothing left"]


@pytest.fixture
def driver_root(library_for: LibraryFor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a machine whose libnvidia-ml answers; its host's cgroups are a folder, whatever runs on this one."""
    profile = load_profile(MACHINE)
    tree = tmp_path / "tree"
    if os.geteuid() != 0:
        pytest.skip("device nodes can't be made without root")
    open_node(MACHINE, tmp_path / "machine.json").materialise(tree, "real")
    (library,) = tree.rglob(f"libnvidia-ml.so.{profile.driver.version}")
    library.unlink()
    shutil.copy(library_for(frozenset(profile.driver.missing_symbols)), library)
    (tmp_path / "nvml.conf").write_text(render(profile))
    (tmp_path / "sys" / "fs" / "cgroup" / "kubepods").mkdir(parents=True)
    (tmp_path / "proc").symlink_to("/proc")
    monkeypatch.setenv("NVMLMOCK_CONFIG", str(tmp_path / "nvml.conf"))
    monkeypatch.setattr(checks, "missing_requirement", lambda: "left out")
    monkeypatch.setattr("tests.hardware.__main__.runtime.hierarchies", list)
    return tree


def arguments(driver_root: Path) -> list[str]:
    return [f"--host-root={driver_root.parent}", f"--driver-root=/{driver_root.name}", "--simulated"]


def test_without_a_gpu_nothing_is_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--host-root", str(tmp_path)]) == 2
    assert "nothing was tried: find libnvidia-ml.so.1" in capsys.readouterr().out


def test_up_to_the_container(driver_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(arguments(driver_root))
    lines = capsys.readouterr().out.splitlines()
    assert status == 0, "\n".join(lines)
    assert [line.split("  ")[0] for line in lines if " ok " in line] == DONE
    assert sum("skipped" in line and "left out" in line for line in lines) == 3
    assert lines[-1].endswith("nothing failed")


def test_what_is_wrong_is_told(
    driver_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "missing_paths", lambda spec, host_root: ["/usr/lib/gone.so"])
    assert main(arguments(driver_root)) == 1
    output = capsys.readouterr().out
    assert "names what isn't there: ['/usr/lib/gone.so']" in output
    assert "FAILED: driver spec" in output


CLAIM = {
    "cdiVersion": "0.5.0",
    "kind": "k8s.gpu.nvidia.com/claim",
    "containerEdits": {"env": ["A=1"]},
    "devices": [
        {
            "name": f"u-gpu-{number}",
            "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}", "hostPath": path}]},
        }
        for number, path in enumerate(("/dev/null", "/dev/zero"))
    ],
}


def test_a_bundle_has_each_specs_own_edits_once(tmp_path: Path) -> None:
    (tmp_path / "claim.json").write_text(json.dumps(CLAIM))
    ids = [f"k8s.gpu.nvidia.com/claim=u-gpu-{number}" for number in range(2)]
    edits = resolve(tmp_path, ids)
    assert edits.env == ["A=1"]
    config = configuration(edits, tmp_path, ["ls"], "/kubepods/podx/c")
    assert [(node["path"], node["major"], node["minor"]) for node in config["linux"]["devices"]] == [
        ("/dev/nvidia0", 1, 3),
        ("/dev/nvidia1", 1, 5),
    ]
    with pytest.raises(LookupError, match="u-gpu-2: no file"):
        resolve(tmp_path, ["k8s.gpu.nvidia.com/claim=u-gpu-2"])


def test_missing_paths_are_those_of_every_kind(tmp_path: Path) -> None:
    edits = {
        "mounts": [{"hostPath": "/no/mount", "containerPath": "/x"}, {"hostPath": "/usr", "containerPath": "/usr"}],
        "deviceNodes": [{"path": "/dev/null"}, {"path": "/dev/nvidia0", "hostPath": "/no/node"}],
        "hooks": [{"hookName": "createContainer", "path": "/no/hook"}],
    }
    assert missing_paths({"devices": [], "containerEdits": edits}, Path("/")) == ["/no/mount", "/no/node", "/no/hook"]
