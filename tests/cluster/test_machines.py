"""Every shipped machine's slices, as `gpuclaim slices -o yaml` prints them, are accepted by the real API server."""

import subprocess
import sys

import pytest

from kubeletplugin.nvml.simulated import load_profile, machine_names
from tests.cluster.harness.agent import Agent

STATIC_MIG = {
    "a30x2": "all=2g.12gb,1g.6gb,1g.6gb",
    "dgx-a100-80": "0=7g.80gb;1=3g.40gb,3g.40gb;2=1g.10gb+me,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb",
    "dgx-h100": "all=1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb",
    "hgx-b200": "0=1g.45gb,2g.45gb,3g.90gb;1=7g.180gb",
    "rtx-pro-6000x8": "0=4g.96gb;1=2g.48gb,1g.24gb,1g.24gb",
}
CASES = [(name, "") for name in machine_names()] + list(STATIC_MIG.items())


@pytest.mark.parametrize(("machine", "mig"), CASES, ids=[f"{name} {mig}".strip() for name, mig in CASES])
def test_its_slices_are_accepted_unchanged(agent: Agent, machine: str, mig: str) -> None:
    layout = ("--mig", mig) if mig else ()
    command = [sys.executable, "-m", "gpuclaim", "slices", "--machine", machine, *layout, "-o", "yaml"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    kubectl = agent.node.kubectl()
    sent = kubectl.run("create", "--dry-run=server", "-f", "-", "-o", "json", stdin=printed)
    assert sent.count('"kind": "ResourceSlice"') == printed.count("kind: ResourceSlice")
    if not mig:
        assert sent.count('"productName"') == len(load_profile(machine).gpus)
