"""Story 9: an instance is stopped between its look at the lease and its deed, and wakes when another has taken over.

With the real lease, CDI writer and ledger; the moment is forced in between two of their steps. (Killing one that is
stopped inside the lock needs a process: tests/contract/dra/test_processes. Story 10 is in test_life, and for two
instances with a call each in tests/contract/dra/test_takeover.)
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kubeletplugin.cdi.writer import SpecWriter
from kubeletplugin.errors import NotActiveError
from kubeletplugin.lease.lease import Lease
from kubeletplugin.lease.processes import ProcessIdentity
from kubeletplugin.ledger.model import ClaimRecord, HeldDevice
from kubeletplugin.ledger.store import Ledger
from tests.contract.prepare.node import Agent
from tests.contract.prepare.virtual import InlineExecutor, LoopClock
from tests.contract.prepare.world import World
from tests.unit.lease.leases import HOST, FakeProcesses

pytestmark = pytest.mark.anyio

FILE = "k8s.gpu.nvidia.com-claim_uid-a.json"
RECORD = ClaimRecord("uid-a", "ns", "a", "fingerprint", "[]", (), (), "boot-1", 1, "2026-01-02T03:04:05+00:00")


def lease(folder: Path, pid: int) -> Lease:
    me = ProcessIdentity(pid, 1, HOST)
    return Lease(
        folder / "lease", f"pod-{pid}", "boot-1", f"{pid}.sock", clock=LoopClock(), processes=FakeProcesses(me)
    )


class Stopped(SpecWriter):
    """Is stopped when its temporary file is written, until ``meanwhile`` has happened."""

    meanwhile: Callable[[], object]

    def _write_temporary(self, name: str, content: bytes) -> Path:
        path = super()._write_temporary(name, content)
        self.meanwhile()
        return path


async def test_9_a_file_of_one_that_wakes_too_late_does_not_appear(tmp_path: Path) -> None:
    first, second = lease(tmp_path, 11), lease(tmp_path, 22)
    assert await first.acquire(first.read().record)
    writer = Stopped(tmp_path / "cdi", first.fence(1), prefix="k8s.gpu.", instance="first", epoch=1)
    writer.meanwhile = lambda: second._try_raise(second.read().record)
    with pytest.raises(NotActiveError):
        writer.write(FILE, b"{}")
    assert list((tmp_path / "cdi").iterdir()) == []
    assert second.epoch == 2


async def test_9_nor_does_it_remove_what_the_next_one_wrote_or_commit(tmp_path: Path) -> None:
    first, second = lease(tmp_path, 11), lease(tmp_path, 22)
    assert await first.acquire(first.read().record)
    writer = SpecWriter(tmp_path / "cdi", first.fence(1), prefix="k8s.gpu.", instance="first", epoch=1)
    ledger = await Ledger.open(
        tmp_path / "ledger.db", fence=first.fence(1), boot_id="boot-1", executor=InlineExecutor()
    )
    assert await second.acquire(second.read().record)
    theirs = SpecWriter(tmp_path / "cdi", second.fence(2), prefix="k8s.gpu.", instance="second", epoch=2)
    theirs.write(FILE, b"{}")

    with pytest.raises(NotActiveError):
        writer.remove(FILE)
    with pytest.raises(NotActiveError):
        await ledger.commit_claim(RECORD, [HeldDevice("gpu-0", "GPU-0", "GPU-0", True)])

    assert theirs.exists(FILE)
    assert await ledger.claims() == ()
    ledger._connection.close()


async def test_9_nor_answer_what_the_next_one_may_have_undone(tmp_path: Path) -> None:
    world = World(tmp_path)
    agent = await Agent(world).start()
    a = world.allocate("a", "gpu-0")
    world.at("write uid-a", lambda: world.at("fence", lambda: setattr(world, "holder", None)))
    with pytest.raises(NotActiveError):
        await agent.prepare_one(a)
    following = await Agent(world).start()
    assert await following.unprepare(a) == ""
    await asyncio.sleep(31)
    assert (await following.holders(), world.files) == ({}, {})
    await agent.crash()
    await following.stop()
