"""`gpuclaim slices`: what would be published, fit for kubectl."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gpuclaim.demo.apiserver import FakeApiServer
from kubeapi.client import RESOURCE_SLICES
from kubeapi.credentials import Connection, FixedConnection
from kubeapi.rest import RestKubeApi
from kubeletplugin.inventory.model import Attribute, Inventory, WithheldGpu
from tests.unit.cli.conftest import Command
from tests.unit.cli.machines import CASES, IDS, STATIC_MIG, flags
from tests.unit.slices.samples import gpu_device


def devices(slices: list[Any]) -> Iterator[dict[str, Any]]:
    for piece in slices:
        yield from piece["spec"].get("devices", ())


@pytest.mark.parametrize(("machine", "mig"), CASES, ids=IDS)
def test_every_machine_in_every_form(gpuclaim: Command, machine: str, mig: str) -> None:
    words = ["slices", *flags(machine, mig), "--node-name=node-a"]
    printed = gpuclaim(*words, "-o", "yaml")
    stream = printed.yaml()
    assert {(piece["apiVersion"], piece["kind"]) for piece in stream} == {("resource.k8s.io/v1", "ResourceSlice")}
    assert {piece["spec"]["nodeName"] for piece in stream} == {"node-a"}
    assert {piece["spec"]["pool"]["resourceSliceCount"] for piece in stream} == {len(stream)}
    assert len({piece["metadata"]["name"] for piece in stream}) == len(stream)
    answer = gpuclaim(*words, "--output", "json").json()
    assert answer == {"apiVersion": "v1", "kind": "List", "items": stream}
    table = gpuclaim(*words).out.splitlines()
    assert table[0].split() == ["SLICE", "DEVICE", "CAPACITY", "ATTRIBUTES"]
    assert [line.split()[1] for line in table[1:]] == [device["name"] for device in devices(stream)]
    assert printed.err == ""


@pytest.mark.anyio
@pytest.mark.parametrize("machine", ["dgx-spark", "dgx-h100", "vgpu-guest"])
async def test_an_api_server_takes_them_unchanged(gpuclaim: Command, machine: str) -> None:
    """Every machine against a real one: tests/cluster/test_machines.py."""
    async with (
        FakeApiServer() as server,
        RestKubeApi(FixedConnection(Connection(server.url))) as api,
    ):
        for piece in await in_thread(gpuclaim, "slices", *flags(machine, STATIC_MIG.get(machine, "")), "-o", "yaml"):
            stored = await api.create(RESOURCE_SLICES, piece)
            assert stored["spec"] == piece["spec"]


async def in_thread(gpuclaim: Command, *words: str) -> list[Any]:
    """The command runs a loop of its own."""
    return (await asyncio.to_thread(gpuclaim, *words)).yaml()


def test_what_is_left_out_is_told_beside_the_answer(gpuclaim: Command) -> None:
    everything = gpuclaim("slices", "--machine=t4x4", "-o", "yaml").yaml()
    inventory = gpuclaim("inventory", "--machine=t4x4", "-o", "json").json()
    gone = inventory["devices"][0]
    answer = gpuclaim("slices", "--machine=t4x4", f"--exclude={gone['uuid']}=bad fan", "-o", "yaml")
    assert [d["name"] for d in devices(answer.yaml())] == [d["name"] for d in devices(everything)][1:]
    assert answer.err.startswith(f"gpuclaim: GPU {gone['uuid']} isn't offered: ")
    assert "bad fan" in answer.err


def test_what_the_server_wouldnt_take_is_told_too(gpuclaim: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    withheld = WithheldGpu(3, "GPU-3", "0000:61:00.0", "NVML doesn't say its memory")
    odd = gpu_device(1, driverVersion=Attribute("version", "580.0x"))
    found = Inventory("580.1", (gpu_device(0), odd), withheld=(withheld,))
    monkeypatch.setattr("gpuclaim.cli.commands._look", lambda settings: found)
    answer = gpuclaim("slices", "-o", "yaml", "--node-name=node-a")
    assert [device["name"] for device in devices(answer.yaml())] == ["gpu-0"]
    first, second, third = answer.err.splitlines()
    assert first == "gpuclaim: GPU GPU-3 isn't offered: NVML doesn't say its memory"
    assert second.startswith("gpuclaim: leave out attributes.driverVersion of device gpu-1: ")
    assert third.startswith("gpuclaim: leave out device gpu-1: attributes.driverVersion is needed")


@pytest.mark.parametrize("name", ["", "node-a", "a.b.example"])
def test_the_pool_is_the_nodes(gpuclaim: Command, name: str) -> None:
    env = {"GPUCLAIM_NODE_NAME": "from-env"}
    words = ["--node-name", name] if name else []
    stream = gpuclaim("slices", "--machine=l4x1", "-o", "yaml", *words, env=env).yaml()
    assert {piece["spec"]["pool"]["name"] for piece in stream} == {name or "from-env"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine=l4x1", "--node-name=Node_A"], "render slices for node 'Node_A': pool name 'Node_A' must be DNS"),
        (["--machine=l4x2"], "find machine 'l4x2': no such profile (did you mean l4x1?); give a file or one of "),
    ],
)
def test_bad_input_is_one_line(gpuclaim: Command, words: list[str], message: str) -> None:
    assert gpuclaim("slices", *words).refusal(2).startswith(message)
