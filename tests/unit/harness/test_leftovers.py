"""What the look for leftovers finds, and what it leaves alone."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceclasses.names import DRIVER_NAME
from kubeletplugin.ledger.files import connect
from kubeletplugin.ledger.schema import prepare_for_writing
from tests.cluster.leftovers import Places, leftovers


@pytest.fixture
def places() -> Iterator[Places]:
    """In a short path: a socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield places_in(Path(folder))


def places_in(root: Path) -> Places:
    made = Places(root / "k", root / "cdi")
    for folder in (made.cdi, made.kubelet_root / "plugins" / DRIVER_NAME, made.kubelet_root / "plugins_registry"):
        folder.mkdir(parents=True)
    return made


def ledger(places: Places, *statements: str) -> None:
    connection = connect(places.kubelet_root / "plugins" / DRIVER_NAME / "ledger.db")
    prepare_for_writing(connection, "ledger.db", "boot")
    for statement in statements:
        connection.execute(statement)
    connection.close()


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen()
    return made


def test_what_an_agent_may_keep(places: Places) -> None:
    ledger(places, "INSERT INTO name_bindings VALUES ('gpu-0', 'GPU-1')")
    (places.cdi / "k8s.gpu.nvidia.com-driver.json").touch()
    (places.cdi / "other-vendor.json").touch()
    (places.kubelet_root / "plugins" / DRIVER_NAME / "lease").touch()
    with listening(places.kubelet_root / "plugins_registry" / f"{DRIVER_NAME}-1-reg.sock"):
        assert leftovers(places) == []


def test_what_it_may_not(places: Places) -> None:
    ledger(
        places,
        "INSERT INTO claims VALUES ('uid', 'ns', 'c', 'f', '{}', '[]', '[]', 'boot', 1, '')",
        "INSERT INTO holds (route, holder, device_name, device_uuid, gpu_uuid, whole_gpu, state, since) "
        "VALUES ('claim', 'uid', 'gpu-0', 'GPU-1', 'GPU-1', 1, 'draining', '')",
        "INSERT INTO intents (kind, target, undo, boot_id) VALUES ('mps', 'GPU-1', '{}', 'boot')",
    )
    plugin = places.kubelet_root / "plugins" / DRIVER_NAME
    for name in ("claim_uid.json", "claim_uid.json.instance.1.0.tmp"):
        (places.cdi / f"k8s.gpu.nvidia.com-{name}").touch()
    (plugin / "something.tmp").touch()
    listening(plugin / "dra-1.sock").close()
    listening(places.kubelet_root / "plugins_registry" / f".{DRIVER_NAME}-1-reg.sock").close()
    kinds = [line.split(":")[0] for line in leftovers(places)]
    assert kinds == ["CDI", "CDI", "ledger", "ledger", "ledger", "file", "socket", "socket"]


def test_two_driver_specs_are_one_too_many(places: Places) -> None:
    """The same device in two files of a folder can't be resolved."""
    for name in ("driver.json", "driver-old.json"):
        (places.cdi / f"k8s.gpu.nvidia.com-{name}").touch()
    assert [line.split(":")[0] for line in leftovers(places)] == ["CDI"]
