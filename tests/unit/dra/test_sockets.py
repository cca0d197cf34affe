"""Names of sockets, and who listens on them."""

import os
import socket
from pathlib import Path

import pytest

from kubeletplugin.dra.sockets import (
    MAX_SOCKET_PATH,
    SocketPaths,
    answers,
    choose_paths,
    peer_dra_sockets,
    peer_registration_sockets,
    plugin_dir,
    registry_dir,
)
from kubeletplugin.errors import FatalError

DRIVER = "gpu.nvidia.com"
UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def choose(root: str, driver: str = DRIVER, uid: str = UID) -> SocketPaths:
    path = Path(root)
    return choose_paths(registry_dir(path), plugin_dir(path, driver), driver, uid)


def length(path: Path) -> int:
    return len(os.fsencode(path))


def test_names_hold_driver_and_pod_uid() -> None:
    paths = choose("/var/lib/kubelet")
    assert str(paths.registration) == f"/var/lib/kubelet/plugins_registry/gpu.nvidia.com-{UID}-reg.sock"
    assert str(paths.dra) == f"/var/lib/kubelet/plugins/gpu.nvidia.com/dra-{UID}.sock"
    assert paths.dra_target == f"unix:{paths.dra}"


@pytest.mark.parametrize(
    ("spare", "registration"),
    [
        (0, f"{DRIVER}-{UID}-reg.sock"),
        (-1, f"{DRIVER}-XXXXXXXXXXX-reg.sock"),
        (-26, "dra-XXXXXXXXXXX-reg.sock"),
        (-34, "dra-XXXXXXXXXXX-reg.sock"),
    ],
)
def test_registration_name_is_shortened_only_as_far_as_the_root_demands(spare: int, registration: str) -> None:
    """``spare``: bytes by which the longest name would stay below the limit."""
    longest = len(f"/plugins_registry/{DRIVER}-{UID}-reg.sock")
    root = "/" + "r" * (MAX_SOCKET_PATH - longest - spare - 1)
    paths = choose(root)
    token = paths.registration.name.removesuffix("-reg.sock")[-11:]
    assert paths.registration.name == registration.replace("XXXXXXXXXXX", token)
    assert length(paths.registration) <= MAX_SOCKET_PATH
    assert length(paths.dra) <= MAX_SOCKET_PATH
    assert length(paths.hidden) == length(paths.registration)


def test_dra_name_is_shortened_too() -> None:
    paths = choose("/" + "r" * 50, driver="gpu.nvidia.com.example.org")
    assert len(paths.dra.name) == len("dra-XXXXXXXXXXX.sock")


def test_short_names_differ_between_instances_and_drivers() -> None:
    root = "/" + "r" * 60
    names = {
        choose(root, driver, uid).registration.name
        for driver in (DRIVER, "gpu.example.com")
        for uid in (UID, UID.replace("0f", "1f"))
    }
    assert len(names) == 4


def test_a_root_for_which_nothing_fits_is_refused_with_the_way_out() -> None:
    with pytest.raises(FatalError, match=r"at most 107 .* shorter --kubelet-root-dir"):
        choose("/" + "r" * 90)


def test_bytes_count_not_characters() -> None:
    paths = choose("/" + "ä" * 16)
    assert length(paths.registration) <= MAX_SOCKET_PATH
    assert UID not in paths.registration.name


def test_hidden_name_is_ignored_by_the_kubelet() -> None:
    assert choose("/var/lib/kubelet").hidden.name.startswith(".")


def bind(path: Path, *, listen: bool) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.fspath(path))
    if listen:
        server.listen()
    return server


def test_a_socket_answers_only_while_somebody_listens(short_path: Path) -> None:
    path = short_path / "s.sock"
    assert not answers(path)
    server = bind(path, listen=True)
    assert answers(path)
    server.close()
    assert path.exists()
    assert not answers(path)


def test_a_full_backlog_is_no_sign_of_death(short_path: Path) -> None:
    with bind(short_path / "s.sock", listen=False) as server:
        server.listen(0)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(os.fspath(short_path / "s.sock"))
        assert answers(short_path / "s.sock")
        for client in clients:
            client.close()


def test_peers_are_this_drivers_other_instances(short_path: Path) -> None:
    registry, plugin = short_path / "r", short_path / "p"
    registry.mkdir()
    plugin.mkdir()
    own = choose_paths(registry, plugin, DRIVER, "me")
    open_sockets = [
        bind(path, listen=False)
        for path in (
            own.dra,
            own.registration,
            plugin / "dra-you.sock",
            registry / f"{DRIVER}-you-reg.sock",
            registry / "dra-you-reg.sock",
            registry / "dra-stranger-reg.sock",
            registry / "nic.example.com-you-reg.sock",
        )
    ]
    (plugin / "dra-file.sock").write_text("not a socket")
    dra_sockets = peer_dra_sockets(plugin, own)
    registrations = peer_registration_sockets(registry, DRIVER, own, dra_sockets)
    assert dra_sockets == [plugin / "dra-you.sock"]
    assert registrations == [registry / "dra-you-reg.sock", registry / f"{DRIVER}-you-reg.sock"]
    for item in open_sockets:
        item.close()
