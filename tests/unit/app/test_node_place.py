"""Device nodes are kept where claims get theirs from, wherever the driver is now."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kubeletplugin.app.agent import _node_place
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.inventory.nodes import NodePlace


def test_the_node_place_follows_the_driver(tmp_path: Path) -> None:
    host = DriverRoot(tmp_path)
    own = DriverRoot(tmp_path / "run/nvidia/driver", "/run/nvidia/driver")
    found: list[DriverRoot | None] = [None]
    hardware: Any = SimpleNamespace(host=host, locate_driver=lambda: found[-1])
    on_host = NodePlace(tmp_path / "dev", "/dev", tmp_path / "dev")
    assert _node_place(hardware) == on_host
    found.append(own)
    assert _node_place(hardware) == on_host, "it hasn't made its nodes yet"
    own.seen("/dev").mkdir(parents=True)
    own.seen("/dev/nvidiactl").touch()
    assert _node_place(hardware) == NodePlace(own.seen("/dev"), "/run/nvidia/driver/dev", tmp_path / "dev")
