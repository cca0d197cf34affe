"""Damage to the ledger's file: claims that are held stay held, whatever becomes of it."""

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.agent.node import until, until_true
from tests.contract.damage.node import DamagedNode, assert_said_once, fill, troubles

pytestmark = pytest.mark.anyio


def remove_all(ledger: Path) -> None:
    for path in ledger.parent.glob(f"{ledger.name}*"):
        path.unlink()


def remove_file(ledger: Path) -> None:
    ledger.unlink()


def remove_log(ledger: Path) -> None:
    log_of(ledger).unlink()


def log_of(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}-wal")


def empty_log(ledger: Path) -> None:
    log_of(ledger).write_bytes(b"")


def fill_log_with_garbage(ledger: Path) -> None:
    fill_with_garbage(log_of(ledger))


def empty_with_strange_log(ledger: Path) -> None:
    ledger.write_bytes(b"")
    log_of(ledger).write_bytes(b"garbage " * 1000)


def empty(ledger: Path) -> None:
    ledger.write_bytes(b"")


def truncate(ledger: Path) -> None:
    with ledger.open("r+b") as file:
        file.truncate(5000)


def fill_with_garbage(ledger: Path) -> None:
    size = ledger.stat().st_size
    with ledger.open("r+b") as file:
        file.write(b"garbage " * (size // 8))


@pytest.mark.parametrize("damage", [remove_all, empty, truncate, fill_with_garbage, empty_with_strange_log])
async def test_damaged_while_no_agent_runs(node: DamagedNode, damage: Callable[[Path], None]) -> None:
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    files = node.claim_files()
    await first.end(signal.SIGTERM)
    damage(node.ledger)
    second = await node.ready_agent(name="second")
    assert node.claim_files().keys() == files.keys()
    await node.still_works((claim, "gpu-1"))
    if damage in (remove_all, empty):
        assert_said_once(second.output, f"there was no ledger {node.ledger}", "removed or emptied")
        await node.until_event("LedgerRemoved")
    else:
        assert_said_once(second.output, f"open the ledger {node.ledger}", "set aside", "begun anew")
        assert list(node.ledger.parent.glob("ledger.db.damaged-*"))
        await node.until_event("LedgerDamaged")
    assert_said_once(second.output, "take in claim default/train", "gpu-1")


UNDER_WAY = [
    remove_all,
    remove_file,
    remove_log,
    empty,
    empty_log,
    truncate,
    fill_with_garbage,
    fill_log_with_garbage,
]


@pytest.mark.parametrize("damage", UNDER_WAY)
async def test_harmed_under_the_agent_that_made_it(node: DamagedNode, damage: Callable[[Path], None]) -> None:
    """What the agent has open is whole, so nothing is lost, a kill right after it included."""
    agent = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    node.pods.run("pod-of-gone", 4711)
    gone = await node.held("gone", "gpu-2")
    await node.released(gone)
    damage(node.ledger)
    await until_true(lambda: "written anew" in agent.output)
    later = await node.held("later", "gpu-3")
    assert_said_once(agent.output, f"the ledger {node.ledger}", "written anew")
    await node.until_event("LedgerRemoved")
    await agent.end(signal.SIGKILL)
    second = await node.ready_agent(name="second")
    assert await node.holders("gpu-2") == ["gone"]
    node.pods.end("pod-of-gone")
    await node.still_works((claim, "gpu-1"), (later, "gpu-3"))
    assert troubles(second.output) == []


@pytest.mark.parametrize("damage", UNDER_WAY)
async def test_harmed_under_an_agent_that_found_it(node: DamagedNode, damage: Callable[[Path], None]) -> None:
    """It has read all of it."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    await first.end(signal.SIGTERM)
    agent = await node.ready_agent(name="second")
    damage(node.ledger)
    await until_true(lambda: "written anew" in agent.output)
    await agent.end(signal.SIGKILL)
    third = await node.ready_agent(name="third")
    await node.still_works((claim, "gpu-1"))
    assert_said_once(agent.output, f"the ledger {node.ledger}", "written anew")
    assert troubles(third.output) == []


@pytest.mark.parametrize("damage", [truncate, fill_with_garbage])
async def test_overwritten_under_an_agent(node: DamagedNode, damage: Callable[[Path], None]) -> None:
    """Where it hasn't all in memory, something is gone for good."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    await first.end(signal.SIGTERM)
    command = ("-m", "tests.contract.damage.forgetful_agent")
    agent = await node.start_process("second", "--log-format=json", "--rescan-interval=0.5", command=command)
    await node.ready()
    damage(node.ledger)
    await until_true(lambda: "begun anew" in agent.output)
    await node.ready()
    remaining = await node.held("next", "gpu-2")
    await node.still_works((claim, "gpu-1"), (remaining, "gpu-2"))
    assert_said_once(agent.output, f"check the ledger {node.ledger}", "set aside", "begun anew")


async def test_a_newer_versions_ledger_ends_the_agent_and_is_left_alone(node: DamagedNode) -> None:
    """Going on without it could give a GPU twice; the version that wrote it can go on."""
    first = await node.ready_agent(name="first")
    claim = await node.held("train", "gpu-1")
    await first.end(signal.SIGTERM)
    with sqlite3.connect(node.ledger) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE key IN ('schema', 'min_writer')")
    connection.close()
    before = node.ledger.read_bytes()
    second = await node.agent(name="second")
    await until_true(lambda: second.ended)
    assert_said_once(second.output, f"open the ledger {node.ledger}", "schema 99", "run the newer version again")
    assert node.ledger.read_bytes() == before
    assert node.claim_files() and claim.uid in next(iter(node.claim_files()))
    assert len(node.devices()) == 8


async def test_a_folder_in_the_ledgers_place(node: DamagedNode) -> None:
    node.ledger.mkdir(parents=True)
    (node.ledger / "somebodys").write_text("thing")
    agent = await node.ready_agent()
    await node.still_works()
    assert_said_once(agent.output, f"open the ledger {node.ledger}", "is a folder", "set aside")
    assert list(node.ledger.parent.glob("ledger.db.damaged-*/somebodys"))


async def test_a_full_disk(node: DamagedNode) -> None:
    """A prepare waits for space, and is there when it comes."""
    node.mount(node.settings.plugin_dir, "size=2m")
    agent = await node.ready_agent()
    claim = await node.held("train", "gpu-1")
    filler = node.settings.plugin_dir / "filler"
    fill(filler)
    waiting = node.allocate("next", "gpu-2", pod="pod-of-next")
    preparing = asyncio.create_task(node.prepare("pod-of-next", waiting))

    async def waits() -> bool:
        return any("free space" in entry["for"] for entry in (await node.status())["waiting"])

    await until(waits)
    await asyncio.sleep(2.5)  # tries once a second
    filler.unlink()
    await preparing
    await node.still_works((claim, "gpu-1"), (waiting, "gpu-2"))
    assert_said_once(agent.output, f"write the ledger {node.ledger}", "free space")


async def test_a_disk_that_is_read_only(node: DamagedNode) -> None:
    """Nobody can be told apart from others without a lease: the agent says so, and its supervisor starts it again."""
    node.mount(node.settings.plugin_dir, "ro")
    agent = await node.agent()
    await until_true(lambda: agent.ended)
    assert_said_once(agent.output, str(node.settings.plugin_dir), "Read-only", "writable")
