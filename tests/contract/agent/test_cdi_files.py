"""CDI files that somebody else removes or writes into are back at once; files of others are theirs."""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeapi.client import EVENTS
from tests.contract.agent.node import AgentNode, until_true

pytestmark = pytest.mark.anyio

DRIVER = "k8s.gpu.nvidia.com-driver.json"


@pytest.fixture
async def files(node: AgentNode) -> dict[str, str]:
    """All of ours, with two claims prepared."""
    # So that nothing is put back by a look at the hardware.
    node.start_agent(rescan_interval=10.0)
    await node.ready()
    for number in (1, 2):
        await node.prepare(f"pod-{number}", node.allocate(f"c{number}", f"gpu-{number}", pod=f"pod-{number}"))
    found = ours(node)
    assert len(found) == 3
    return found


def ours(node: AgentNode) -> dict[str, str]:
    found = {}
    for path in node.settings.cdi_dir.glob("k8s.gpu.nvidia.com-*.json"):
        try:
            found[path.name] = path.read_text()
        except FileNotFoundError:
            continue
    return found


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def remove_drivers(folder: Path) -> None:
    (folder / DRIVER).unlink()


def move_away(folder: Path) -> None:
    for path in folder.glob("*claim_*"):
        path.rename(folder.parent / path.name)


def write_into(folder: Path) -> None:
    for path in folder.glob("*.json"):
        path.write_text("{")


def notes(node: AgentNode) -> list[str]:
    return [str(event["note"]) for event in node.server.objects(EVENTS) if event["reason"] == "CDIFilesRestored"]


@pytest.mark.parametrize("harm", [remove_all, remove_folder, remove_drivers, move_away, write_into])
async def test_what_is_harmed_is_put_back(node: AgentNode, files: dict[str, str], harm: Callable[[Path], None]) -> None:
    harm(node.settings.cdi_dir)
    assert ours(node) != files
    await until_true(lambda: ours(node) == files)
    await until_true(lambda: notes(node))
    assert str(node.settings.cdi_dir) in notes(node)[0]


async def test_one_event_for_harm_that_comes_again(node: AgentNode, files: dict[str, str]) -> None:
    for _ in range(3):
        remove_all(node.settings.cdi_dir)
        await until_true(lambda: ours(node) == files)
    await until_true(lambda: notes(node))
    assert len(notes(node)) == 1


async def test_others_files_are_left_alone_and_our_own_changes_are_no_harm(
    node: AgentNode, files: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = node.settings.cdi_dir
    broken = folder / "vendor.example.com-broken.json"
    broken.write_text("{")
    claim = node.allocate("c3", "gpu-3", pod="pod-3")
    await node.prepare("pod-3", claim)
    await node.kubelet.unprepare("pod-3", [claim])
    os.unlink(folder / DRIVER)
    await until_true(lambda: ours(node) == files)
    assert broken.read_text() == "{"

    def said() -> list[str]:
        return [line for line in map(logging.LogRecord.getMessage, caplog.records) if "written again" in line]

    await until_true(said)
    (line,) = said()
    assert line.startswith("CDI files of the driver were")
