"""Trouble beside the driver, or with a part of it only: it costs what it concerns and nothing else."""

import asyncio
import logging
import threading
from collections.abc import Mapping

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.health.verdict import Health, judge
from kubeletplugin.inventory import watcher
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.nvml.errors import NvmlCode, NvmlTimeoutError
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import Bindings, Machine, until_idle
from tests.unit.inventory.test_faults import ImpatientWith
from tests.unit.inventory.watched import Watched, watching

pytestmark = pytest.mark.anyio


def count_shutdowns(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    shutdowns: list[str] = []
    real = machine.nvml.shutdown

    def shutdown() -> None:
        shutdowns.append("shutdown")
        real()

    monkeypatch.setattr(machine.nvml, "shutdown", shutdown)
    return shutdowns


def too_late() -> str:
    raise NvmlTimeoutError("driver_version", 5)


# --- calls that hang ---


async def test_a_lost_gpu_beside_one_that_hangs_costs_the_others_nothing(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shutdown would wait for the call that hangs, and everything after it for the shutdown."""
    machine = make_machine()
    impatient = ImpatientWith(machine.uuid(5))
    machine.workers = impatient
    watched = Watched(machine)
    shutdowns = count_shutdowns(machine, monkeypatch)
    running = asyncio.create_task(watched.service.run())
    assert len((await watched.service.refresh()).answered) == 8
    machine.node.hang(5, "memory_info")
    await watched.service.refresh()
    machine.node.lose_gpu(3)
    for _ in range(3):
        inventory = await watched.service.refresh()
        assert len(inventory.answered) == 6
        assert inventory.lost == {machine.uuid(3)}
    assert (watched.service.problem, shutdowns) == ("", [])
    machine.node.clear_faults()
    while len((await watched.service.refresh()).answered) < 7:
        pass  # until the hung call has come back
    await until_idle(impatient)
    await watched.service.refresh()
    assert shutdowns == ["shutdown"], "now that nothing hangs the cure is tried"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    impatient.workers.close()


async def test_a_session_that_went_stale_is_kept_while_a_call_is_inside_nvml(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine()
    async with watching(machine) as watched:
        shutdowns = count_shutdowns(machine, monkeypatch)
        machine.workers.busy = True
        watched.node.set_driver(loaded=False)
        with pytest.raises(RecoverableError, match="DRIVER_NOT_LOADED"):
            await watched.service.refresh()
        assert shutdowns == []
        machine.workers.busy = False
        watched.node.set_driver(loaded=True)
        assert len((await watched.service.refresh()).answered) == 8


async def test_a_driver_that_hangs_is_not_shut_down(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = make_machine()
    async with watching(machine) as watched:
        shutdowns = count_shutdowns(machine, monkeypatch)
        machine.workers.hung.add("system")
        with pytest.raises(RecoverableError, match="look at the GPUs: NVML gave no answer within 5 s: see the kernel"):
            await watched.service.refresh()
        assert "_read_node" not in watched.service.problem
        machine.workers.hung.clear()
        with monkeypatch.context() as patch, pytest.raises(RecoverableError, match="gave no answer"):
            patch.setattr(machine.nvml, "driver_version", too_late)
            await watched.service.refresh()
        assert len((await watched.service.refresh()).answered) == 8
        assert (shutdowns, watched.session.generation) == ([], 1)


# --- a ledger that can't be read or written ---


class Broken(Bindings):
    """Raises ``error`` while there is one."""

    error: Exception | None = None

    async def bindings(self) -> Mapping[str, str]:
        if self.error is not None:
            raise self.error
        return await super().bindings()

    async def referenced_names(self) -> frozenset[str]:
        if self.error is not None:
            raise self.error
        return await super().referenced_names()


@pytest.mark.parametrize("error", [RecoverableError("read the ledger: I/O error"), OSError(5, "I/O error")])
async def test_names_that_cannot_be_had_cost_no_device(error: Exception, make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.remove_gpu(7)
    async with watching(machine, bound=False) as watched:
        bindings = Broken()
        watched.service.use_bindings(bindings)
        await watched.service.refresh()
        bindings.error = error
        machine.node.restore_gpu(7)
        machine.node.lose_gpu(2)
        await watched.clock.advance(watcher.DRIVER_GONE_SECONDS + 20)
        assert watched.names() == {f"gpu-{slot}" for slot in range(7)}, "a newcomer waits for its name"
        assert {device.name for device in watched.inventory.devices if device.problem} == {"gpu-2"}
        assert watched.inventory.answered == {machine.uuid(slot) for slot in range(8) if slot != 2}
        assert watched.inventory.lost == {machine.uuid(2)}
        assert watched.service.problem.startswith("bind device names: ")
        assert "I/O error" in watched.service.problem
        with pytest.raises(RecoverableError, match=r"bind device names: .*I/O error"):
            await watched.service.refresh()
        bindings.error = None
        machine.node.restore_gpu(2)
        assert len((await watched.service.refresh()).devices) == 8
        assert watched.service.problem == ""


async def test_without_a_name_ever_there_is_no_inventory(make_machine: MakeMachine) -> None:
    bindings = Broken()
    bindings.error = OSError(5, "I/O error")
    watched = Watched(make_machine())
    watched.service.use_bindings(bindings)
    running = asyncio.create_task(watched.service.run())
    with pytest.raises(RecoverableError, match="bind device names"):
        await watched.service.refresh()
    assert watched.service.current is None
    bindings.error = None
    assert len((await watched.service.refresh()).devices) == 8
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_while_nobody_can_say_what_is_held_everything_counts_as_held(make_machine: MakeMachine) -> None:
    async with watching(make_machine(), bound=False) as watched:
        bindings = Broken()
        watched.service.use_bindings(bindings)
        await watched.service.refresh()
        bindings.error = OSError(5, "I/O error")
        watched.node.set_driver(loaded=False)
        await watched.clock.advance(watcher.DRIVER_GONE_SECONDS + 20)
        assert len(watched.names()) == 8
        assert all("DRIVER_NOT_LOADED" in device.problem for device in watched.inventory.devices)
        bindings.error = None
        await watched.clock.advance(10)
        assert watched.names() == set()


async def test_a_driver_is_gone_after_a_minute_of_its_own(make_machine: MakeMachine) -> None:
    async with watching(make_machine(), bound=False) as watched:
        bindings = Broken()
        watched.service.use_bindings(bindings)
        await watched.service.refresh()
        bindings.error = OSError(5, "I/O error")
        await watched.clock.advance(watcher.DRIVER_GONE_SECONDS + 20)
        bindings.error = None
        watched.node.set_driver(loaded=False)
        await watched.clock.advance(20)
        assert "DRIVER_NOT_LOADED" in watched.service.problem
        assert len(watched.names()) == 8


async def test_each_trouble_is_told_once(make_machine: MakeMachine, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(make_machine(), bound=False) as watched:
        bindings = Broken()
        bindings.error = RecoverableError("read the ledger: I/O error")
        watched.service.use_bindings(bindings)
        with caplog.at_level(logging.WARNING, logger=watcher.__name__):
            await watched.clock.advance(60)
        assert [record.message for record in caplog.records] == ["bind device names: read the ledger: I/O error"]


# --- a file of exclusions that can't be read ---


async def test_exclusions_that_cannot_be_had_stay_as_they_were(make_machine: MakeMachine) -> None:
    answers: list[list[Exclusion] | Exception] = [[Exclusion("1b:00.0")]]

    def exclusions() -> list[Exclusion]:
        answer = answers[-1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with watching(make_machine(), exclusions=exclusions) as watched:
        assert len(watched.names()) == 7
        answers.append(ValueError("not a config file"))
        assert len((await watched.service.refresh()).devices) == 7
        assert watched.service.problem == ""


# --- device nodes ---


async def test_nodes_that_cannot_be_kept_cost_no_look(
    make_machine: MakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    def ensure(minors: frozenset[int]) -> None:
        raise FileNotFoundError(2, "No such file", "/dev/nvidia-caps/nvidia-cap12")

    async with watching(make_machine(), bound=False, ensure_nodes=ensure) as watched:
        watched.service.use_bindings(watched.bindings)
        with caplog.at_level(logging.WARNING, logger=watcher.__name__):
            for _ in range(2):
                assert len((await watched.service.refresh()).answered) == 8
        assert [record.message.partition(": ")[0] for record in caplog.records] == ["keep the driver's device nodes"]


async def test_a_dev_that_hangs_holds_up_no_look_and_one_thread(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "NODES_SECONDS", 0.02)
    released = threading.Event()
    asked: list[frozenset[int]] = []
    again = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ensure(minors: frozenset[int]) -> None:
        asked.append(minors)
        if len(asked) > 1:
            loop.call_soon_threadsafe(again.set)
        assert released.wait(30)

    async with watching(make_machine(), bound=False, ensure_nodes=ensure) as watched:
        watched.service.use_bindings(watched.bindings)
        for _ in range(3):
            assert len((await watched.service.refresh()).answered) == 8
        assert len(asked) == 1
        released.set()
        while not again.is_set():
            await watched.service.refresh()


async def test_a_standby_keeps_no_nodes_and_only_sound_devices_get_one(make_machine: MakeMachine) -> None:
    asked: list[frozenset[int]] = []
    machine = make_machine("t4x4")
    async with watching(machine, bound=False, ensure_nodes=asked.append) as watched:
        await watched.service.refresh()
        assert asked == []
        watched.service.use_bindings(watched.bindings)
        await watched.service.refresh()
        assert asked == [frozenset(range(4))]
        watched.hold("gpu-1")
        machine.node.lose_gpu(1)
        assert len((await watched.service.refresh()).devices) == 4
        assert asked[-1] == {0, 2, 3}
        told = len(asked)
        watched.service.use_bindings(None)
        await watched.service.refresh()
        assert len(asked) == told


# --- names at a take-over ---


async def test_what_is_held_under_another_name_is_found_at_a_take_over(make_machine: MakeMachine) -> None:
    machine = make_machine()
    first, second = machine.uuid(0), machine.uuid(1)
    async with watching(machine, bound=False) as watched:
        assert [device.name for device in watched.inventory.devices[:2]] == ["gpu-0", "gpu-1"]
        machine.node.lose_gpu(0)
        machine.node.lose_gpu(1)
        bindings = Bindings({"gpu-0": second}, {"gpu-0"})
        watched.service.use_bindings(bindings)
        inventory = await watched.service.refresh()
        lost = {device.name: device.uuid for device in inventory.devices if device.problem}
        assert lost == {"gpu-0": second}
        assert first not in {device.uuid for device in inventory.devices}


# --- partitions ---


async def test_a_partition_destroyed_in_use_is_unhealthy_for_its_holder_whatever_follows(
    make_machine: MakeMachine,
) -> None:
    machine = make_machine(mig=["0=3g.40gb:0,3g.40gb:4"])
    name = "gpu-0-mig-3g40gb-9-4"

    def health(inventory: Inventory) -> tuple[Health, bool]:
        device = inventory.by_name(name)
        assert device is not None
        verdict = judge(device, inventory)
        return verdict.health, "doesn't exist any more" in verdict.message

    async with watching(machine) as watched:
        watched.hold(name)
        held = watched.inventory.by_name(name)
        assert held is not None
        watched.node.set_mig_layout("0=7g.80gb")
        inventory = await watched.service.refresh()
        assert held.uuid in inventory.lost
        assert health(inventory) == (Health.UNHEALTHY, True)
        machine.workers.hung.add(machine.uuid(0))
        assert health(await watched.service.refresh()) == (Health.UNHEALTHY, True)
        machine.workers.hung.clear()
        await watched.service.refresh()
        watched.node.set_driver(loaded=False)
        await watched.clock.advance(watcher.DRIVER_GONE_SECONDS + 20)
        assert health(watched.inventory) == (Health.UNHEALTHY, True)


# --- the end ---


async def test_refresh_is_refused_when_there_is_no_look_any_more(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        pass
    with pytest.raises(RecoverableError, match="stopping"):
        await watched.service.refresh()


async def test_who_waits_for_a_look_at_the_end_is_told_and_not_cancelled(make_machine: MakeMachine) -> None:
    released = threading.Event()
    machine = make_machine()
    async with watching(machine, ensure_nodes=lambda minors: released.wait(30)) as watched:
        watched.service.use_bindings(watched.bindings)
        waiting = [asyncio.create_task(watched.service.refresh()) for _ in range(2)]
        await watched.settle()
        later = asyncio.create_task(watched.service.refresh())
        await watched.settle()
    released.set()
    for task in (*waiting, later):
        with pytest.raises(RecoverableError, match="stopping"):
            await task


# --- a driver that fails ---


async def test_one_trouble_is_one_line_whichever_call_meets_it(
    make_machine: MakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    """The session is ended at the first failure, so that the next look fails where it begins another."""
    machine = make_machine()
    async with watching(machine) as watched:
        problems: list[str] = []

        async def follow() -> None:
            async for problem in watched.service.problems():
                problems.append(problem)  # noqa: PERF401

        following = asyncio.create_task(follow())
        await watched.settle()
        for call in ("driver_version", "device_count", "init"):
            machine.node.inject_fault("system", call, NvmlCode.UNKNOWN)
        await watched.clock.advance(30)
        machine.node.clear_faults()
        await watched.service.refresh()
        await watched.settle()
        following.cancel()
    assert [problems[0], problems[-1], len(problems)] == ["", "", 3]
    assert problems[1].endswith(
        ": UNKNOWN: see the kernel log (NVRM) and what nvidia-smi says on the node; trying again"
    )
    (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert line == f"look at the GPUs: {problems[1]}"
