"""The hook program is found over its usual places, and only what it has is used of it."""

from pathlib import Path

import pytest

from kubeletplugin.cdi.hooktool import ALL_SUBCOMMANDS, FIRST_SUBCOMMANDS, HookTool, find_hook_tool
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.cdi.spec import Hook
from tests.unit.cdi.machine import Machine

CURRENT = b"\x7fELF..chmodcreate-symlinksupdate-ldcacheenable-cuda-compatdisable-device-node-modification.."
OLD = b"\x7fELF..chmodcreate-symlinksupdate-ldcache.."


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def find(machine: Machine, explicit: str = "") -> HookTool | None:
    return find_hook_tool((machine.driver_root,), explicit)


def test_none(machine: Machine) -> None:
    assert find(machine) is None


@pytest.mark.parametrize(
    ("path", "content", "command", "subcommands"),
    [
        ("/usr/bin/nvidia-cdi-hook", CURRENT, ("nvidia-cdi-hook",), ALL_SUBCOMMANDS),
        ("/usr/bin/nvidia-cdi-hook", OLD, ("nvidia-cdi-hook",), FIRST_SUBCOMMANDS),
        ("/usr/bin/nvidia-ctk", CURRENT, ("nvidia-ctk", "hook"), ALL_SUBCOMMANDS),
        ("/usr/local/nvidia/toolkit/nvidia-cdi-hook", CURRENT, ("nvidia-cdi-hook",), ALL_SUBCOMMANDS),
        ("/usr/bin/nvidia-cdi-hook", b"#!/bin/sh\nexec elsewhere\n", ("nvidia-cdi-hook",), FIRST_SUBCOMMANDS),
        ("/usr/bin/nvidia-cdi-hook", b"", ("nvidia-cdi-hook",), FIRST_SUBCOMMANDS),
    ],
)
def test_found_with_what_it_has(
    machine: Machine, path: str, content: bytes, command: tuple[str, ...], subcommands: frozenset[str]
) -> None:
    machine.put(path, content)
    assert find(machine) == HookTool(path, command, subcommands)


def test_the_hook_comes_before_the_larger_tool(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-ctk", CURRENT)
    machine.put("/usr/local/nvidia/toolkit/nvidia-cdi-hook", CURRENT)
    found = find(machine)
    assert found is not None and found.path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"


def test_the_operator_s_script_is_looked_behind(machine: Machine) -> None:
    machine.put("/usr/local/nvidia/toolkit/nvidia-cdi-hook", b"#!/bin/sh\nexec nvidia-cdi-hook.real\n")
    machine.put("/usr/local/nvidia/toolkit/nvidia-cdi-hook.real", CURRENT)
    assert find(machine) == HookTool("/usr/local/nvidia/toolkit/nvidia-cdi-hook", ("nvidia-cdi-hook",), ALL_SUBCOMMANDS)


def test_the_path_is_the_host_s(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "/run/nvidia/driver")
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    found = find(machine)
    assert found is not None and found.path == "/run/nvidia/driver/usr/bin/nvidia-cdi-hook"
    explicit = find(machine, "/run/nvidia/driver/usr/bin/nvidia-cdi-hook")
    assert explicit == found


def test_an_explicit_path_is_taken_as_given(machine: Machine) -> None:
    machine.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    machine.put("/opt/tool/nvidia-ctk", OLD)
    assert find(machine, "/opt/tool/nvidia-ctk") == HookTool(
        "/opt/tool/nvidia-ctk", ("nvidia-ctk", "hook"), FIRST_SUBCOMMANDS
    )
    assert find(machine, "/not/seen/hook") == HookTool("/not/seen/hook", ("nvidia-cdi-hook",), ALL_SUBCOMMANDS)


def test_several_roots(tmp_path: Path) -> None:
    host, driver = Machine(tmp_path / "h"), Machine(tmp_path / "d", "/run/nvidia/driver")
    driver.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    roots: tuple[DriverRoot, ...] = (host.driver_root, driver.driver_root)
    found = find_hook_tool(roots)
    assert found is not None and found.path == "/run/nvidia/driver/usr/bin/nvidia-cdi-hook"
    host.put("/usr/bin/nvidia-cdi-hook", CURRENT)
    found = find_hook_tool(roots)
    assert found is not None and found.path == "/usr/bin/nvidia-cdi-hook"


def test_a_hook_as_nvidia_s_own_files_have_it() -> None:
    tool = HookTool("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook"), ALL_SUBCOMMANDS)
    assert tool.create_symlinks({"/lib/a.so.1": "a.so.5", "/lib/b": "../b"}) == Hook(
        "createContainer",
        "/usr/bin/nvidia-ctk",
        ("nvidia-ctk", "hook", "create-symlinks", "--link", "a.so.5::/lib/a.so.1", "--link", "../b::/lib/b"),
        ("NVIDIA_CTK_DEBUG=false",),
    )
