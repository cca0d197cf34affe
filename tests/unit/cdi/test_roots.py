"""Links are followed inside the root, and the host's path of a file is told apart from the agent's."""

from pathlib import Path

import pytest

from kubeletplugin.cdi.roots import DriverRoot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/a.so").touch()
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "abs").symlink_to("/usr/lib")
    (tmp_path / "usr/up").symlink_to("../../../../lib/a.so")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("/nowhere")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/usr/lib/a.so", "/usr/lib/a.so"),
        ("/lib/a.so", "/usr/lib/a.so"),
        ("/abs/a.so", "/usr/lib/a.so"),
        ("/usr/up", "/usr/lib/a.so"),
        ("/usr/./lib/../lib/a.so", "/usr/lib/a.so"),
        ("/../usr/lib", "/usr/lib"),
        ("/", "/"),
        ("/loop", None),
        ("/dangling", None),
        ("/absent", None),
        ("/usr/lib/a.so/b", None),
    ],
)
def test_resolve(root: Path, path: str, resolved: str | None) -> None:
    assert DriverRoot(root).resolve(path) == resolved


@pytest.mark.parametrize(
    ("on_host", "path", "host_path"),
    [
        ("/", "/dev/nvidia0", "/dev/nvidia0"),
        ("/run/nvidia/driver", "/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"),
    ],
)
def test_host_path_and_back(root: Path, on_host: str, path: str, host_path: str) -> None:
    driver_root = DriverRoot(root, on_host)
    assert driver_root.host_path(path) == host_path
    assert driver_root.from_host(host_path) == path


def test_a_host_path_outside(root: Path) -> None:
    assert DriverRoot(root, "/run/nvidia/driver").from_host("/usr/bin/nvidia-ctk") is None
    assert DriverRoot(root, "/run/nvidia").from_host("/run/nvidia-other/x") is None
