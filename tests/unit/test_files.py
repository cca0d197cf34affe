"""Reading where others write: nothing that a name may hide makes the reader wait."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.app import settings
from kubeletplugin.classic.checkpoint import DeviceCheckpointFile
from kubeletplugin.errors import FatalError
from kubeletplugin.files import NotRegularError, read_regular
from kubeletplugin.prepare.kubelet_state import KubeletStateFile


def test_a_file_is_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    assert read_regular(tmp_path / "link", 3) == b"con"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, _socket, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_nothing_else_is(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd")
    with pytest.raises(OSError):
        read_regular(tmp_path / "odd")


def test_a_fifo_for_what_the_kubelet_writes_is_unreadable(tmp_path: Path) -> None:
    for path in (KubeletStateFile(tmp_path).path, DeviceCheckpointFile(tmp_path).path):
        path.parent.mkdir(exist_ok=True)
        os.mkfifo(path)
    assert "isn't a regular file" in KubeletStateFile(tmp_path).read().unreadable
    assert "isn't a regular file" in DeviceCheckpointFile(tmp_path).read().unreadable


def test_a_fifo_for_the_config_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(FatalError, match="isn't a regular file"):
        settings.load([f"--config={tmp_path / 'config.yaml'}"], {})


def test_a_missing_one_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read_regular(tmp_path / "none")
    assert not isinstance(caught.value, NotRegularError)
