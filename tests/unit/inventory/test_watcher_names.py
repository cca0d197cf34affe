"""Devices in use over time: MIG layouts and minor numbers that change under them, names that stay."""

from dataclasses import replace
from typing import Any

import pytest

from kubeletplugin.errors import NotActiveError, RecoverableError
from tests.unit.inventory.conftest import MakeMachine
from tests.unit.inventory.support import Bindings
from tests.unit.inventory.watched import watching

pytestmark = pytest.mark.anyio


# --- MIG ---


async def test_a_new_layout_is_noticed(make_machine: MakeMachine) -> None:
    async with watching(make_machine(mig=["0=3g.40gb,3g.40gb"])) as watched:
        assert {"gpu-0-mig-3g40gb-9-0", "gpu-0-mig-3g40gb-9-4"} <= watched.names()
        watched.node.set_mig_layout("0=7g.80gb;1=1g.10gb:0")
        await watched.clock.advance(10)
        assert {"gpu-0-mig-7g80gb-0-0", "gpu-1-mig-1g10gb-19-0"} <= watched.names()
        assert "gpu-1" not in watched.names()
        assert len(watched.names()) == 8


async def test_a_partition_destroyed_in_use_is_remembered(make_machine: MakeMachine) -> None:
    async with watching(make_machine(mig=["0=3g.40gb:0,3g.40gb:4"])) as watched:
        watched.hold("gpu-0-mig-3g40gb-9-4")
        held = watched.inventory.by_name("gpu-0-mig-3g40gb-9-4")
        assert held is not None
        watched.node.set_mig_layout("0=7g.80gb")
        await watched.clock.advance(10)
        kept = watched.inventory.by_name(held.name)
        assert kept is not None
        assert (kept.uuid, "doesn't exist any more" in kept.problem) == (held.uuid, True)
        assert watched.inventory.by_name("gpu-0-mig-7g80gb-0-0") is not None


async def test_mig_turned_on_under_a_gpu_in_use(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.hold("gpu-0")
        watched.node.set_mig_layout("0=7g.80gb")
        await watched.clock.advance(10)
        device = watched.inventory.by_name("gpu-0")
        assert device is not None
        assert "MIG mode was turned on" in device.problem
        assert watched.inventory.by_name("gpu-0-mig-7g80gb-0-0") is not None


# --- names ---


async def test_names_are_bound_and_written_only_when_they_change(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        assert watched.bindings.bound == {f"gpu-{slot}": watched.machine.uuid(slot) for slot in range(8)}
        await watched.clock.advance(50)
        assert watched.bindings.writes == 1


async def test_a_name_in_use_outlives_a_change_of_minors(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.hold("gpu-0")
        first, second = watched.machine.uuid(0), watched.machine.uuid(1)
        watched.node.set_minor(0, 1)
        watched.node.set_minor(1, 0)
        inventory = await watched.service.refresh()
        assert {device.uuid: device.name for device in inventory.devices[:2]} == {first: "gpu-0", second: "gpu-0-5f8e"}
        assert [device.minor for device in inventory.devices[:2]] == [1, 0]
        watched.bindings.referenced.clear()
        inventory = await watched.service.refresh()
        assert {device.uuid: device.name for device in inventory.devices[:2]} == {first: "gpu-1", second: "gpu-0"}


async def test_a_replaced_board_gets_a_name_of_its_own(make_machine: MakeMachine) -> None:
    async with watching(make_machine()) as watched:
        watched.hold("gpu-4")
        old = watched.machine.uuid(4)
        watched.node.replace_gpu(4, "GPU-abcd1234-0000-0000-0000-000000000000")
        inventory = await watched.service.refresh()
        held, new = inventory.by_name("gpu-4"), inventory.by_name("gpu-4-abcd")
        assert held is not None
        assert new is not None
        assert (held.uuid, bool(held.problem)) == (old, True)
        assert (new.uuid, new.problem) == ("GPU-abcd1234-0000-0000-0000-000000000000", "")
        watched.bindings.referenced.clear()
        inventory = await watched.service.refresh()
        assert inventory.by_name("gpu-4") == replace(new, name="gpu-4")


class Racing(Bindings):
    """A claim takes gpu-0 between the reading and the writing, ``races`` times."""

    races = 1

    async def set_bindings(self, bindings: Any) -> None:
        if self.races:
            self.races -= 1
            self.bound["gpu-0"] = "GPU-other"
            self.referenced.add("gpu-0")
            raise ValueError("gpu-0 is referenced and can't move")
        await super().set_bindings(bindings)


async def test_a_claim_that_takes_a_name_meanwhile_wins(make_machine: MakeMachine) -> None:
    async with watching(make_machine(), bound=False) as watched:
        watched.service.use_bindings(Racing())
        inventory = await watched.service.refresh()
        assert inventory.devices[0].name == "gpu-0-dd56"


async def test_names_that_cannot_be_bound_are_not_published(make_machine: MakeMachine) -> None:
    racing = Racing()
    racing.races = 100
    async with watching(make_machine(), bound=False) as watched:
        before = watched.inventory
        watched.service.use_bindings(racing)
        with pytest.raises(RecoverableError, match="bind device names"):
            await watched.service.refresh()
        assert watched.inventory.devices == before.devices
        assert watched.session.generation == 1


class Yielded(Bindings):
    async def set_bindings(self, bindings: Any) -> None:
        raise NotActiveError("the lease is gone")


async def test_an_instance_that_just_yielded_goes_on_looking(make_machine: MakeMachine) -> None:
    async with watching(make_machine(), bound=False) as watched:
        watched.service.use_bindings(Yielded())
        assert len((await watched.service.refresh()).devices) == 8
