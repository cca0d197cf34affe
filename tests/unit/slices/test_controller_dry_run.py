"""Asking the API server beforehand."""

import pytest

from kubeapi.client import Json
from kubeapi.errors import ApiError, Invalid
from kubeletplugin.inventory.model import Attribute
from tests.unit.slices.samples import gpu_device, inventory_of
from tests.unit.slices.worlds import INVALID, refuse, world

pytestmark = pytest.mark.anyio


async def test_a_dry_run_asks_about_every_slice_and_touches_nothing() -> None:
    async with world(start=False) as it:
        devices = inventory_of(*(gpu_device(index) for index in range(65)))
        assert await it.controller.dry_run(devices) == ()
        assert [call.split("-gpu")[0] for call in it.api.calls] == ["dry-run 00000", "dry-run 00001"]
        assert it.slices == []


async def test_a_dry_run_says_what_wouldnt_be_published() -> None:
    def picky(verb: str, body: Json) -> ApiError | None:
        names = [device["name"] for device in body.get("spec", {}).get("devices", ())]
        return Invalid(422, "Invalid", f"spec.devices[{names.index('gpu-1')}]: no") if "gpu-1" in names else None

    async with world(start=False) as it:
        it.api.fault = picky
        bad = gpu_device(2, rawVersion=Attribute("version", "x"))
        problems = await it.controller.dry_run(inventory_of(gpu_device(0), gpu_device(1), bad))
        assert [(problem.device, problem.key) for problem in problems] == [
            ("gpu-2", "attributes.rawVersion"),
            ("gpu-1", ""),
        ]
        assert it.observer.told == []


async def test_a_dry_run_that_is_refused_as_a_whole() -> None:
    async with world(start=False) as it:
        it.api.fault = refuse("dry-run", error=INVALID)
        with pytest.raises(Invalid, match="denied by a policy"):
            await it.controller.dry_run(inventory_of(gpu_device(0)))
