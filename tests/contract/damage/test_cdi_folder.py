"""Damage to the folder of CDI files, which the agent shares with others and which a boot empties."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.contract.agent.node import until, until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, assert_told_well, fill, troubles

pytestmark = pytest.mark.anyio


def files(node: DamagedNode) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in node.settings.cdi_dir.glob("k8s.gpu.nvidia.com-*.json")}


@pytest.mark.parametrize("with_folder", [False, True])
async def test_wiped_under_an_agent(node: DamagedNode, with_folder: bool) -> None:
    """A container of a running pod that is started again needs its claim's file."""
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    before = files(node)
    if with_folder:
        shutil.rmtree(node.settings.cdi_dir)
    else:
        for name in before:
            (node.settings.cdi_dir / name).unlink()
    await until_true(lambda: files(node) == before, seconds=45)
    await node.still_works((claim, "gpu-1"))
    assert_told_well(agent.output)


async def test_strangers_broken_files_cost_nothing_and_the_deadly_one_is_named(node: DamagedNode) -> None:
    folder = node.settings.cdi_dir
    folder.mkdir(parents=True)
    strangers = {
        "broken.json": b'{"cdiVersion": "0.6.0", "kind":',
        "empty.yaml": b"",
        "future.json": b'{"cdiVersion": "9.9.9", "kind": "vendor.com/class", "devices": []}',
        "binary.json": bytes(range(256)),
        "deadly.yaml": b"cdiVersion: 0.6.0\nkind: a.com/b\ndevices: []\n",
    }
    for name, content in strangers.items():
        (folder / name).write_bytes(content)
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to(folder / "gone")
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    await node.still_works((claim, "gpu-1"))
    assert {name: (folder / name).read_bytes() for name in strangers} == strangers
    assert_said_once(agent.output, str(folder / "deadly.yaml"), "a.com/b", "containerd", "remove")
    assert len(troubles(agent.output)) == 1
    await node.until_event("ForeignCDIFile")
    assert "deadly.yaml" in str((await node.status())["cdiProblems"])
    (folder / "deadly.yaml").unlink()

    async def forgotten() -> bool:
        return not (await node.status())["cdiProblems"]

    await until(forgotten)


async def test_a_strangers_file_with_our_devices_is_named(node: DamagedNode) -> None:
    """The same device in two files of a folder can't be resolved by anybody."""
    agent = await node.ready_agent()
    stranger = node.settings.cdi_dir / "copy.json"
    stranger.write_bytes((node.settings.cdi_dir / "k8s.gpu.nvidia.com-driver.json").read_bytes())
    await until_true(lambda: str(stranger) in agent.output)
    assert_said_once(agent.output, str(stranger), "k8s.gpu.nvidia.com/driver", "remove")


async def test_a_file_in_the_folders_place(node: DamagedNode) -> None:
    folder = node.settings.cdi_dir
    folder.write_text("no folder")
    agent = await node.agent()
    await until_true(lambda: "make it a folder" in agent.output)
    waiting = node.allocate("train", "gpu-1", pod="pod-of-train")
    preparing = asyncio.create_task(node.prepare("pod-of-train", waiting))
    await asyncio.sleep(2)
    assert not preparing.done()
    folder.unlink()
    await preparing
    await node.ready()
    await node.still_works((waiting, "gpu-1"))
    assert_said_once(agent.output, str(folder), "make it a folder")


async def test_a_folder_that_cant_be_written(node: DamagedNode) -> None:
    """Running claims keep what they have; health and drains go on."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    before = files(node)
    read_only(node, node.settings.cdi_dir)
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))
    await until_true(lambda: "mount it writable" in first.output)
    await asyncio.sleep(2)
    assert not preparing.done()
    assert files(node) == before
    node.unmount()
    await preparing
    await node.still_works((claim, "gpu-1"), (waiting, "gpu-2"))
    assert_said_once(first.output, f"write CDI spec {node.settings.cdi_dir}", "mount it writable")


async def test_a_start_on_a_folder_that_cant_be_written(node: DamagedNode) -> None:
    node.settings.cdi_dir.mkdir()
    read_only(node, node.settings.cdi_dir)
    agent = await node.agent()
    await until_true(lambda: "mount it writable" in agent.output)
    await node.ready()
    node.unmount()
    claim = await node.held("train", "gpu-1")
    await node.still_works((claim, "gpu-1"))
    assert_said_once(agent.output, "CDI spec", "mount it writable")


async def test_a_full_disk(node: DamagedNode) -> None:
    node.mount(node.settings.cdi_dir, "size=128k")
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    filler = node.settings.cdi_dir / "filler"
    fill(filler)
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))

    async def waits() -> bool:
        return any("free space" in entry["for"] for entry in (await node.status())["waiting"])

    await until(waits)
    filler.unlink()
    await preparing
    await node.still_works((claim, "gpu-1"), (waiting, "gpu-2"))
    assert_said_once(agent.output, f"write CDI spec {node.settings.cdi_dir}", "free space")


def read_only(node: DamagedNode, folder: Path) -> None:
    node.bind_read_only(folder)
