"""What the API server refuses, drops or can't do, and what that costs."""

import itertools
import logging

import pytest

from kubeapi.client import Json
from kubeapi.errors import ApiError, Conflict, Forbidden, Invalid, TooManyRequests, Unreachable
from kubeletplugin.inventory.model import Attribute
from kubeletplugin.slices.controller import REFUSED_SECONDS
from tests.unit.slices.samples import NODE, content_of, gpu_device, inventory_of, many, plain, stored, taint
from tests.unit.slices.worlds import INVALID, refuse, world

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "error",
    [
        Unreachable("connection refused"),
        Conflict(409, "Conflict", "changed"),
        Forbidden(403, "Forbidden", "may not create resourceslices"),
        ApiError(500, "InternalError", "etcd"),
    ],
)
async def test_errors_are_retried_with_growing_delays(error: ApiError) -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=error)
        it.want(plain("a"))
        await it.pass_time(10)
        assert not it.accepted()
        assert it.observer.retries[:4] == pytest.approx([0.15, 0.3, 0.6, 1.2])
        assert f"{NODE}: {error}" in it.observer.told
        it.api.fault = lambda verb, body: None
        await it.pass_time(30)
        assert it.slices == ["00000 g1/1 a"]
        assert it.accepted()


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=TooManyRequests(429, "TooManyRequests", "slow down", retry_after=20))
        it.want(plain("a"))
        await it.pass_time(19)
        assert len(it.api.calls) == 1
        await it.pass_time(2)
        assert len(it.api.calls) == 2


async def test_a_write_that_fails_halfway_doesnt_wake_itself_up() -> None:
    async with world(stored("00000-x", "a")) as it:
        it.api.fault = refuse("create", error=Forbidden(403, "Forbidden", "no"))
        it.want(*many(65))
        await it.pass_time(5)
        assert it.calls_since(0).count("update") == len(it.observer.retries) <= 7


async def test_a_refused_pool_waits_for_another_wish() -> None:
    async with world() as it:
        it.api.fault = refuse("create", error=INVALID)
        it.want(plain("a"))
        await it.pass_time(REFUSED_SECONDS - 1)
        assert len(it.api.calls) == 1
        it.want(plain("b"))
        await it.pass_time()
        assert len(it.api.calls) == 2
        it.api.fault = lambda verb, body: None
        await it.pass_time(REFUSED_SECONDS + 1)
        assert it.slices == ["00000 g1/1 b"]
        assert it.accepted()


async def test_a_device_that_the_server_refuses_costs_only_itself() -> None:
    def picky(verb: str, body: Json) -> ApiError | None:
        for index, device in enumerate(body.get("spec", {}).get("devices", ())):
            if device["name"] == "b":
                return Invalid(422, "Invalid", f"spec.devices[{index}].attributes: not today")
        return None

    async with world() as it:
        it.api.fault = picky
        it.want(plain("a"), plain("b"), plain("c"))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a c"]
        assert it.accepted()
        assert it.observer.told == [
            f"{NODE}: leave out device b: the API server refuses it: spec.devices[1].attributes: not today"
        ]
        it.api.fault = lambda verb, body: None
        await it.pass_time(REFUSED_SECONDS + 1)
        assert it.slices == ["00000 g1/1 a b c"]


async def test_a_device_that_is_refused_again_is_told_once() -> None:
    """A refused create names the slice as it would have been called, another name each time."""
    numbers = itertools.count()

    def picky(verb: str, body: Json) -> ApiError | None:
        if body.get("spec", {}).get("devices", [{}])[0].get("name") != "a":
            return None
        name = f"00000-gpu.nvidia.com-{NODE}-{next(numbers)}"
        return Invalid(422, "Invalid", f'ResourceSlice.resource.k8s.io "{name}" is invalid: spec.devices[0]: no')

    async with world() as it:
        it.api.fault = picky
        it.want(plain("a"), plain("b"))
        await it.pass_time(3 * REFUSED_SECONDS)
        assert next(numbers) > 2
        assert it.observer.told == [f"{NODE}: leave out device a: the API server refuses it: spec.devices[0]: no"]


async def test_a_device_whose_taint_is_dropped_is_withdrawn_without_a_loop() -> None:
    def without_taints(body: Json) -> None:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)

    async with world() as it:
        it.api.mutate = without_taints
        it.want(plain("a"), plain("b", taints=[taint()]))
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert it.observer.writes == ["create", "update"]
        assert any("off: DRADeviceTaints" in line for line in it.observer.told)
        assert any("leave out device b: the API server drops devices.taints" in line for line in it.observer.told)
        await it.pass_time(3600)
        assert it.observer.writes == ["create", "update"]
        it.want(plain("a", taints=[taint("48")]), plain("b"))
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 b"]
        assert it.observer.writes == ["create", "update", "update"]


async def test_a_dropped_taint_is_noticed_even_when_a_later_write_fails() -> None:
    def without_taints(body: Json) -> None:
        for device in body["spec"].get("devices", ()):
            device.pop("taints", None)

    async with world() as it:
        it.api.mutate = without_taints
        it.api.fault = lambda verb, body: (
            Unreachable("down") if verb == "create" and body["metadata"]["generateName"].startswith("00001") else None
        )
        it.want(plain("b", taints=[taint()]), *many(70))
        await it.pass_time()
        it.api.fault = lambda verb, body: None
        await it.pass_time(5)
        assert "b" not in it.slices[0].split()


async def test_bad_devices_and_attributes_are_told_once() -> None:
    async with world() as it:
        bad = gpu_device(1, rawVersion=Attribute("version", "1.02.3"))
        it.controller.set_devices(inventory_of(gpu_device(0), bad))
        await it.pass_time(1)
        it.api.wipe()
        await it.pass_time(1)
        assert it.slices == ["00000 g1/1 gpu-0 gpu-1"]
        assert len(it.observer.told) == 1
        assert "leave out attributes.rawVersion of device gpu-1" in it.observer.told[0]


async def test_a_refused_delete_is_tried_again_and_hides_nothing() -> None:
    async with world(stored("odd", "z"), stored("00000-x", "a")) as it:
        it.api.fault = refuse("delete", error=Forbidden(403, "Forbidden", "no"))
        it.want(plain("a"))
        await it.pass_time(1)
        assert not it.accepted()
        it.api.fault = lambda verb, body: None
        await it.pass_time(5)
        assert it.slices == ["00000 g1/1 a"]


async def test_trouble_is_logged_once_with_what_to_do_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def lines(level: int) -> list[str]:
        mine = [r for r in caplog.records if r.levelno == level and "write slices" in r.getMessage()]
        return [record.getMessage() for record in mine]

    async with world() as it:
        it.api.fault = refuse("create", error=Forbidden(403, "Forbidden", "may not create"))
        it.want(plain("a"))
        await it.pass_time(120)
        assert len(it.observer.retries) > 5
        (line,) = lines(logging.WARNING)
        assert line.startswith(f"pool {NODE}: write slices: may not create (403 Forbidden); apply deploy")
        it.want(plain("a"), plain("b"))
        await it.pass_time(1)
        assert lines(logging.INFO) == []
        it.api.fault = lambda verb, body: None
        await it.pass_time(60)
        assert len(lines(logging.WARNING)) == 1
        assert lines(logging.INFO) == [f"pool {NODE}: write slices: works again"]


async def test_pools_fail_apart() -> None:
    async with world() as it:
        it.api.fault = lambda verb, body: (
            INVALID if verb == "create" and body["spec"]["pool"]["name"] == "bad" else None
        )
        it.controller.set_pools({"bad": content_of(plain("x")), NODE: content_of(plain("a"))})
        await it.pass_time()
        assert it.slices == ["00000 g1/1 a"]
        assert not it.accepted()
