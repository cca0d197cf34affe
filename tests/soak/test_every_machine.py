"""The slices of every shipped machine, whole and with every MIG profile that it has, put to the real API server.

Each is sent as `gpuclaim slices -o yaml` prints it, and must come back with nothing dropped or changed.
"""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kubeletplugin.nvml.simulated import load_profile, machine_names
from tests.cluster.harness import node as real
from tests.cluster.harness.kubectl import Json, Kubectl
from tests.soak.conftest import Tell


def layouts(machine: str) -> Iterator[str]:
    """None at all, then for each profile as many partitions as fit, on each GPU that can have it."""
    yield ""
    profile = load_profile(machine)
    found: dict[str, list[str]] = {}
    for gpu in profile.gpus:
        for entry in profile.model_of(gpu.index).mig.gpu_instance_profiles:
            partitions = ",".join([entry.profile.name] * entry.profile.max)
            found.setdefault(entry.profile.name, []).append(f"{gpu.index}={partitions}")
    yield from (";".join(parts) for parts in found.values())


def printed(machine: str, mig: str) -> str:
    layout = ("--mig", mig) if mig else ()
    command = [sys.executable, "-m", "gpuclaim", "slices", "--machine", machine, *layout, "-o", "yaml"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def accepted(kubectl: Kubectl, text: str) -> list[Json]:
    answer: Any = yaml.safe_load(kubectl.run("create", "--dry-run=server", "-f", "-", "-o", "yaml", stdin=text))
    items: list[Json] = answer["items"] if answer["kind"] == "List" else [answer]
    return items


@pytest.mark.parametrize("machine", machine_names())
def test_its_slices_come_back_as_sent(own_node: real.RealNode, machine: str, tell: Tell) -> None:
    kubectl, cases, devices = own_node.kubectl(), 0, 0
    for mig in layouts(machine):
        text = printed(machine, mig)
        sent = list(yaml.safe_load_all(text))
        answered = accepted(kubectl, text)
        assert [item["spec"] for item in answered] == [item["spec"] for item in sent], mig or "whole GPUs"
        found = [device["name"] for item in sent for device in item["spec"].get("devices", [])]
        assert len(found) == len(set(found)) > 0, mig or "whole GPUs"
        cases, devices = cases + 1, devices + len(found)
    tell(layouts=cases, devices=devices)
