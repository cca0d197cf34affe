"""`gpuclaim inventory`: what a node has, for eyes and for programs, and what it would need to be told better."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuclaim.cli import views
from gpuclaim.cli.output import print_table
from kubeletplugin.inventory.model import Inventory, Notice, WithheldGpu
from kubeletplugin.nvml.simulated import load_profile, open_node
from tests.unit.cli.conftest import Command
from tests.unit.cli.machines import CASES, IDS, STATIC_MIG, flags


@pytest.mark.parametrize(("machine", "mig"), CASES, ids=IDS)
def test_every_machine_in_every_form(gpuclaim: Command, machine: str, mig: str) -> None:
    data = gpuclaim("inventory", *flags(machine, mig), "-o", "json").json()
    assert gpuclaim("inventory", *flags(machine, mig), "--output=yaml").yaml() == [data]
    gpus = load_profile(machine).gpus
    assert len(data["devices"]) >= len(gpus) if not mig else len(data["devices"]) > 0
    assert data["driverVersion"] != ""
    table = gpuclaim("inventory", *flags(machine, mig)).out.splitlines()
    assert table[0] == f"driver {data['driverVersion']}"
    assert table[1].split() == ["DEVICE", "PRODUCT", "MEMORY", "NUMA", "PCI", "UUID"]
    assert [line.split()[0] for line in table[2 : 2 + len(data["devices"])]] == [d["name"] for d in data["devices"]]
    for line, device in zip(table[2:], data["devices"], strict=False):
        assert device["uuid"] in line
        assert device["capacity"]["memory"] in line
        assert str(device["attributes"]["productName"]) in line


@pytest.mark.parametrize("machine", STATIC_MIG)
def test_a_partition_shows_its_profile(gpuclaim: Command, machine: str) -> None:
    answer = gpuclaim("inventory", *flags(machine, STATIC_MIG[machine]), "-o", "json").json()
    partitions = [device for device in answer["devices"] if device["attributes"]["type"] == "mig"]
    assert partitions
    table = gpuclaim("inventory", *flags(machine, STATIC_MIG[machine])).out
    assert all(f"{d['attributes']['productName']} {d['attributes']['profile']} " in table for d in partitions)


def test_memory_that_is_the_systems_is_shown_as_unified(gpuclaim: Command) -> None:
    line = gpuclaim("inventory", "--machine=dgx-spark").out.splitlines()[2]
    (device,) = gpuclaim("inventory", "--machine=dgx-spark", "-o", "json").json()["devices"]
    assert device["attributes"]["unifiedMemory"] is True
    assert f" {device['capacity']['memory']} unified " in line
    assert device["capacity"]["memory"] != "0"
    assert "unified" not in gpuclaim("inventory", "--machine=dgx-h100").out


def test_an_excluded_gpu_is_shown_with_its_reason(gpuclaim: Command) -> None:
    gone = gpuclaim("inventory", "--machine=dgx-h100", "-o", "json").json()["devices"][3]
    words = ["inventory", "--machine=dgx-h100", f"--exclude={gone['uuid']}=bad fan [row 3]", "--exclude=GPU-none"]
    answer = gpuclaim(*words, "-o", "json").json()
    assert gone["name"] not in [device["name"] for device in answer["devices"]]
    (withheld,) = answer["withheld"]
    assert withheld["uuid"] == gone["uuid"]
    assert "bad fan [row 3]" in withheld["reason"]
    assert any("GPU-none" in notice for notice in answer["notices"])
    table = gpuclaim(*words).out
    assert "bad fan [row 3]" in table
    assert f"note: {answer['notices'][0]}" in table.splitlines()


def test_a_gpu_that_cannot_be_read_is_withheld_and_costs_only_itself(gpuclaim: Command, tmp_path: Path) -> None:
    state = tmp_path / "machine.json"
    open_node("dgx-h100", state).inject_fault(3, "nvmlDeviceGetMemoryInfo", 999)
    env = {"GPUCLAIM_MACHINE_STATE": str(state)}
    answer = gpuclaim("inventory", "--machine=dgx-h100", "-o", "json", env=env).json()
    assert len(answer["devices"]) == 7
    assert [gpu["index"] for gpu in answer["withheld"]] == [3]
    assert "GPU 3" in gpuclaim("inventory", "--machine=dgx-h100", env=env).out


def test_flags_go_before_variables_and_variables_before_the_file(gpuclaim: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: v1\nmachine: t4x4\nmig: []\n")
    env = {"GPUCLAIM_CONFIG": str(config)}
    assert "T4" in gpuclaim("inventory", env=env).out
    env["GPUCLAIM_MACHINE"] = "dgx-h100"
    env["GPUCLAIM_MIG"] = "0=1g.10gb,3g.40gb;1=7g.80gb"
    answer = gpuclaim("inventory", "-o", "json", env=env).json()
    kinds = [device["attributes"]["type"] for device in answer["devices"]]
    assert kinds == ["mig"] * 3 + ["gpu"] * 6
    assert "L4" in gpuclaim("inventory", "--machine=l4x1", "--mig=", env=env).out


def test_a_variable_that_means_nothing_is_told_beside_the_answer(gpuclaim: Command) -> None:
    answer = gpuclaim("inventory", "--machine=l4x1", "-o", "json", env={"GPUCLAIM_MACHIN": "x"})
    assert answer.json()["devices"]
    assert answer.err == "gpuclaim: ignore unknown variable GPUCLAIM_MACHIN (did you mean GPUCLAIM_MACHINE?)\n"


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        (["--machine=dgx-h10"], "find machine 'dgx-h10': no such profile (did you mean dgx-h100?); give a file or", 2),
        (["--machine=/not/there.json"], "read machine profile /not/there.json: no such file", 2),
        (["--mig=0=1g.10gb"], "--mig lays out a simulated machine's GPUs: it needs --machine", 2),
        (["--machine=dgx-h100", "--mig=0=1g.10g"], "lay out GPU 0: no MIG profile '1g.10g' (did you mean 1g.10gb?)", 2),
        (["--machine=l4x1", "--exclude==x"], "--exclude[0][gpu]: string should have at least 1 character", 2),
        (["--machine=l4x1", "--host-root=x"], "--host-root: must be an absolute path", 2),
        (["--host-root=/not/there"], "look at the GPUs: find libnvidia-ml.so.1: not found under any driver root", 1),
    ],
)
def test_bad_input_is_one_line(gpuclaim: Command, words: list[str], message: str, status: int) -> None:
    assert gpuclaim("inventory", *words).refusal(status).startswith(message)


def test_a_driver_that_does_not_answer_is_one_line(gpuclaim: Command, tmp_path: Path) -> None:
    state = tmp_path / "machine.json"
    open_node("l4x1", state).set_driver(loaded=False)
    line = gpuclaim("inventory", "--machine=l4x1", env={"GPUCLAIM_MACHINE_STATE": str(state)}).refusal()
    assert line.startswith("look at the GPUs: ")
    assert line.endswith("load the nvidia kernel module (nvidia-smi says why it isn't)")


def test_what_is_withheld_without_a_name_can_be_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = Inventory("", withheld=(WithheldGpu(5, "", "", "it [/dev/x] hangs"),), notices=(Notice("", "odd :cat:"),))
    views.print_inventory(found)
    shown = capsys.readouterr().out
    assert "GPU 5" in shown
    assert "it [/dev/x] hangs" in shown
    assert "note: odd :cat:" in shown
    assert json.loads(json.dumps(views.inventory_data(found)))["withheld"][0]["index"] == 5


@pytest.mark.parametrize("cell", ["x" * 1000, "[bold]x", "[/x]", ":cat:"])
def test_a_table_without_a_terminal_holds_whole_and_plain_cells(cell: str, capsys: Any) -> None:
    print_table(("A", "B"), [(cell, "last")])
    assert capsys.readouterr().out.splitlines()[1].split() == [cell, "last"]
