"""The inventory over time: drivers that come late and go, GPUs that come, go and fail."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from kubeletplugin.errors import RecoverableError
from kubeletplugin.inventory import watcher
from kubeletplugin.inventory.exclusion import Exclusion
from kubeletplugin.inventory.model import Inventory
from kubeletplugin.nvml.errors import NvmlCode
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.watched import watching

pytestmark = pytest.mark.anyio


async def collect(source: AsyncIterator[Inventory], into: list[Inventory]) -> None:
    async for inventory in source:
        into.append(inventory)  # noqa: PERF401 (read while it grows)


# --- a driver that comes late ---


async def test_looks_at_once_and_again_every_ten_seconds(make_machine: MakeMachine) -> None:
    looks: list[Inventory] = []
    changes: list[Inventory] = []
    async with watching(make_machine()) as watched:
        readers = [
            asyncio.create_task(collect(watched.service.looks(), looks)),
            asyncio.create_task(collect(watched.service.changes(), changes)),
        ]
        await watched.clock.advance(30)
        for reader in readers:
            reader.cancel()
    assert len(looks) == 4
    assert len(changes) == 1
    assert len(changes[0].devices) == 8


async def test_until_the_driver_is_there_there_is_no_inventory_and_one_line(
    make_machine: MakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    machine = make_machine()
    with caplog.at_level(logging.WARNING, logger=watcher.__name__):
        async with watching(machine, before=lambda: machine.node.set_driver(loaded=False)) as watched:
            await watched.clock.advance(100)
            assert watched.service.current is None
            assert "load the nvidia kernel module" in watched.service.problem
            assert len(caplog.records) == 1
            machine.node.set_driver(loaded=True)
            await watched.clock.advance(10)
            assert len(watched.names()) == 8
            assert watched.service.problem == ""


async def test_the_first_tries_come_quickly(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault("system", "init", NvmlCode.LIBRARY_NOT_FOUND, times=2)
    async with watching(machine) as watched:
        assert "install the NVIDIA driver" in watched.service.problem
        await watched.clock.advance(0.9)
        assert watched.service.current is None
        await watched.clock.advance(2.2)
        assert len(watched.names()) == 8


async def test_a_driver_that_shows_no_gpu_yet_is_not_an_empty_node(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.inject_fault("system", "device_count", NvmlCode.UNKNOWN)
    machine.nvml.device_count = lambda: 0  # type: ignore[method-assign]
    async with watching(machine) as watched:
        assert watched.service.current is None
        assert "none of the 8 NVIDIA GPUs on the PCI bus" in watched.service.problem


async def test_a_node_without_gpus_is_an_empty_node(make_machine: MakeMachine) -> None:
    machine = make_machine("l4x1")
    machine.node.remove_gpu(0)
    async with watching(machine) as watched:
        assert watched.inventory.devices == ()
        machine.node.restore_gpu(0)
        await watched.clock.advance(10)
        assert watched.names() == {"gpu-0"}


# --- a driver that goes ---


async def test_a_driver_reload_is_survived_without_a_change(make_machine: MakeMachine) -> None:
    changes: list[Inventory] = []
    async with watching(make_machine()) as watched:
        reader = asyncio.create_task(collect(watched.service.changes(), changes))
        watched.node.set_driver(loaded=False)
        await watched.clock.advance(20)
        assert len(watched.names()) == 8
        assert watched.inventory.answered == frozenset()
        watched.node.set_driver(loaded=True)
        await watched.clock.advance(10)
        assert len(watched.inventory.answered) == 8
        assert watched.service.problem == ""
        reader.cancel()
    assert len(changes) == 1


async def test_a_driver_that_was_exchanged_is_read_through_a_new_session(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.node.set_driver(version="590.48.01")
        inventory = await watched.service.refresh()
        assert inventory.driver_version == "590.48.01"
        assert {device.attributes["driverVersion"].value for device in inventory.devices} == {"590.48.1"}


async def test_a_session_that_went_stale_is_renewed_within_the_look(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        generation = watched.session.generation
        watched.node.inject_fault("system", "device_count", NvmlCode.UNINITIALIZED, times=1)
        await watched.service.refresh()
        assert watched.session.generation == generation + 1
        assert len(watched.inventory.answered) == 8


async def test_after_a_minute_a_driver_is_gone_and_only_what_is_held_stays(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.hold("gpu-2")
        watched.node.set_driver(loaded=False)
        await watched.clock.advance(watcher.DRIVER_GONE_SECONDS)
        assert len(watched.names()) == 8
        await watched.clock.advance(20)
        (device,) = watched.inventory.devices
        assert device.name == "gpu-2"
        assert "DRIVER_NOT_LOADED" in device.problem
        assert len(watched.reasons()) == 8
        watched.node.set_driver(loaded=True)
        await watched.clock.advance(10)
        assert len(watched.names()) == 8
        assert not any(device.problem for device in watched.inventory.devices)


async def test_all_gpus_gone_at_once_is_a_reload_until_proven_otherwise(make_machine: MakeMachine) -> None:
    async with watching(make_machine("l4x1")) as watched:
        watched.node.remove_gpu(0)
        await watched.clock.advance(20)
        assert watched.names() == {"gpu-0"}
        assert "shows no GPU any more" in watched.service.problem


# --- GPUs that come, go and fail ---


async def test_hot_plug(make_machine: MakeMachine) -> None:
    machine = make_machine()
    machine.node.remove_gpu(7)
    async with watching(machine) as watched:
        assert len(watched.names()) == 7
        machine.node.restore_gpu(7)
        await watched.clock.advance(10)
        assert "gpu-7" in watched.names()


async def test_a_gpu_that_nvml_does_not_list_yet_calls_for_a_new_session(make_machine: MakeMachine) -> None:
    machine = make_machine()
    folder = machine.tree / "sys/bus/pci/devices/0000:e5:00.0"
    async with watching(machine) as watched:
        generation = watched.session.generation
        folder.mkdir()
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        await watched.clock.advance(10)
        assert watched.session.generation == generation + 1
        assert "0000:e5:00.0" in watched.inventory.notices[0].text
        await watched.clock.advance(600)
        assert generation + 4 <= watched.session.generation <= generation + 8


@pytest.mark.parametrize("held", [True, False])
async def test_a_removed_gpu_is_lost_and_stays_known_while_held(held: bool, make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        uuid = watched.machine.uuid(3)
        if held:
            watched.hold("gpu-3")
        watched.node.remove_gpu(3)
        await watched.clock.advance(10)
        assert uuid in watched.inventory.lost
        assert "doesn't list this GPU any more" in watched.reasons()[3]
        assert ("gpu-3" in watched.names()) is held
        if held:
            device = watched.inventory.by_uuid(uuid)
            assert device is not None
            assert "doesn't list this GPU any more" in device.problem
        watched.node.restore_gpu(3)
        await watched.clock.advance(10)
        assert (watched.inventory.lost, watched.inventory.withheld) == (frozenset(), ())
        assert not any(device.problem for device in watched.inventory.devices)


async def test_a_lost_gpu_leaves_unless_held(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.hold("gpu-1")
        watched.node.lose_gpu(1)
        watched.node.lose_gpu(2)
        inventory = await watched.service.refresh()
        assert inventory.lost == {watched.machine.uuid(1), watched.machine.uuid(2)}
        assert {device.name for device in inventory.devices if device.problem} == {"gpu-1"}
        assert inventory.by_name("gpu-2") is None
        watched.bindings.referenced.clear()
        assert (await watched.service.refresh()).by_name("gpu-1") is None
        watched.node.restore_gpu(1)
        assert (await watched.service.refresh()).by_name("gpu-1") is not None


async def test_a_lost_gpu_calls_for_new_sessions_ever_more_rarely(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.node.lose_gpu(1)
        generation = watched.session.generation
        await watched.clock.advance(10)
        assert watched.session.generation == generation + 1
        await watched.clock.advance(3600)
        assert watched.session.generation < generation + 15
        watched.node.restore_gpu(1)
        await watched.clock.advance(10)
        generation = watched.session.generation
        await watched.clock.advance(100)
        assert watched.session.generation == generation


async def test_a_gpu_that_hangs_is_withheld_and_comes_back(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        uuid = watched.machine.uuid(5)
        watched.hold("gpu-5")
        watched.machine.workers.hung.add(uuid)
        inventory = await watched.service.refresh()
        device = inventory.by_name("gpu-5")
        assert device is not None
        assert "NVML gave no answer" in device.problem
        assert uuid not in inventory.answered | inventory.lost
        assert len(inventory.answered) == 7
        watched.machine.workers.hung.clear()
        assert (await watched.service.refresh()).withheld == ()


async def test_while_a_gpu_does_not_say_who_it_is_no_other_is_called_gone(make_machine: MakeMachine) -> None:
    machine = make_machine()
    async with watching(machine) as watched:
        machine.node.set_order([1, 0, 2, 3, 4, 5, 6, 7])
        machine.node.inject_fault(0, "uuid", NvmlCode.UNKNOWN)
        inventory = await watched.service.refresh()
        assert inventory.lost == frozenset()
        assert len(inventory.devices) == 7


# --- exclusion, refresh, nodes ---


async def test_exclusions_take_effect_without_a_restart(make_machine: MakeMachine) -> None:
    exclusions: list[Exclusion] = []
    async with watching(make_machine(), exclusions=lambda: exclusions) as watched:
        watched.hold("gpu-1")
        exclusions.extend([Exclusion("1b:00.0", "display"), Exclusion("43:00.0", "display"), Exclusion("ff:00.0")])
        inventory = await watched.service.refresh()
        assert {device.name: bool(device.problem) for device in inventory.devices[:2]} == {
            "gpu-1": True,
            "gpu-2": False,
        }
        assert [gpu.excluded for gpu in inventory.withheld] == [True, True]
        assert len(inventory.notices) == 1
        exclusions.clear()
        assert len((await watched.service.refresh()).devices) == 8


async def test_refresh_waits_for_a_look_that_begins_later(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        looked: list[Inventory] = []
        reader = asyncio.create_task(collect(watched.service.looks(), looked))
        await watched.settle()
        await asyncio.gather(*(watched.service.refresh() for _ in range(5)))
        await watched.settle()
        assert len(looked) == 2
        reader.cancel()


async def test_an_answer_that_nobody_expected_does_not_end_the_looking(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(make_machine()) as watched:
        with monkeypatch.context() as patch, pytest.raises(RecoverableError, match="surprise"):
            patch.setattr(type(watched.machine.nvml), "driver_version", _surprise)
            await watched.service.refresh()
        assert len((await watched.service.refresh()).answered) == 8


def _surprise(nvml: object) -> str:
    raise UnicodeError("surprise")


async def test_a_failed_refresh_says_why(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.node.set_driver(loaded=False)
        with pytest.raises(RecoverableError, match="load the nvidia kernel module"):
            await watched.service.refresh()


async def test_device_nodes_are_kept_for_the_gpus_there_are(make_machine: MakeMachine) -> None:
    asked: list[frozenset[int]] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ensure(minors: frozenset[int]) -> None:
        asked.append(minors)
        loop.call_soon_threadsafe(done.set)

    async with watching(make_machine("t4x4"), ensure_nodes=ensure):
        await done.wait()
    assert asked == [frozenset(range(4))]


async def test_the_session_ends_with_the_service(make_machine: MakeMachine) -> None:
    machine = make_machine()
    async with watching(machine):
        pass
    with pytest.raises(Exception, match="UNINITIALIZED"):
        machine.nvml.device_count()
