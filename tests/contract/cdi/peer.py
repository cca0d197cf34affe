"""NVIDIA's driver on one machine, as captured, and that same machine rebuilt for ours."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kubeletplugin.cdi.driver import DriverSpecFile
from tests.unit.cdi.machine import VERSION, Machine, elf_library
from tests.unit.cdi.test_hooktool import CURRENT

DATA = Path(__file__).parents[2] / "data/peer/cdi"
ROOT = "<root>"
"""What the captures have in place of the driver root's path."""
HOOK = f"{ROOT}/nvidia-cdi-hook"

_PROC_DEVICES = "Character devices:\n195 nvidia-frontend\n236 nvidia-caps\n510 nvidia-uvm\n"


def captured(folder: str) -> list[tuple[str, dict[str, Any]]]:
    """Claim UID and CDI document of each claim."""
    paths = sorted((DATA / folder).glob("*.yaml"))
    found = [(path.stem.partition("claim_")[2], yaml.safe_load(path.read_text())) for path in paths]
    assert found
    return found


@dataclass(frozen=True)
class SeenInContainer:
    env: dict[str, str]
    nodes: dict[str, tuple[int, int]]
    mounts: frozenset[str]


def seen_in_container(name: str) -> SeenInContainer:
    """What `env`, `ls -l /dev` and /proc/mounts said inside a container of the capture, of our concern only."""
    text = (DATA / "container" / f"{name}.txt").read_text()
    env = dict(re.findall(r"^(NVIDIA_\w+)=(.*)$", text, re.MULTILINE))
    nodes = re.findall(r"^crw\S+\s+\d+ root\s+root\s+(\d+),\s+(\d+) .* (nvidia\S*)$", text, re.MULTILINE)
    mounts = re.findall(r"^\S+ (/(?:usr|lib)/\S+) ext4 ro,nosuid,nodev,", text, re.MULTILINE)
    return SeenInContainer(
        env, {f"/dev/{node}": (int(major), int(minor)) for major, minor, node in nodes}, frozenset(mounts)
    )


def rebuild(folder: Path, document: dict[str, Any], on_host: str, hook_path: str) -> Machine:
    """The captured machine: the driver root's files and SONAMEs are what the peer's file tells of them."""
    machine = Machine(folder, "/" if on_host == "" else "/stand-in")
    (machine.proc / "devices").write_text(_PROC_DEVICES)
    edits = document["containerEdits"]
    sonames: dict[str, str] = {}
    for hook in edits["hooks"]:
        for text in hook["args"]:
            target, _, path = text.partition("::")
            if path and re.fullmatch(r".*\.so\.\d+", path) and "indirect" not in path:
                sonames[target] = path.rpartition("/")[2]
    for mount in edits["mounts"]:
        inside = mount["hostPath"].removeprefix(on_host)
        name = inside.rpartition("/")[2]
        machine.put(inside, elf_library(sonames.get(name, f"{name.partition('.so.')[0]}.so.1")))
    for node in edits["deviceNodes"]:
        machine.put(node["hostPath"].removeprefix(on_host))
    machine.devices(*(f"nvidia{minor}" for minor in range(8)))
    machine.put("/nvidia-cdi-hook", CURRENT)
    machine.driver = DriverSpecFile(machine.writer, machine.nodes, machine.driver_root, hook_path=hook_path)
    machine.claims = type(machine.claims)(machine.writer, machine.nodes, machine.driver)
    machine.driver.refresh(VERSION)
    return machine
