"""One file, several readers and writers, and a person with an editor."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.errors import FatalError
from kubeletplugin.nvml.errors import NvmlCode, NvmlError
from kubeletplugin.nvml.simulated import (
    STATE_FILE,
    SimulatedNode,
    SimulatedNvml,
    StateFileError,
    open_node,
    open_simulated,
    parse_mig_flag,
)
from kubeletplugin.nvml.simulated.state import NodeState
from kubeletplugin.nvml.simulated.store import StateStore


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """As an editor does: read, change, write in place."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_two_processes_see_one_machine(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    script = (
        "import sys; from pathlib import Path; from kubeletplugin.nvml.simulated import SimulatedNode;"
        "node = SimulatedNode(Path(sys.argv[1])); nvml = node.nvml(); nvml.init();"
        "gpu = nvml.device_by_index(0); nvml.set_mig_mode(gpu, 1); nvml.create_gpu_instance(gpu, 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(node.store.path)], check=True, timeout=30)
    gpu = nvml.device_by_index(0)
    assert nvml.mig_mode(gpu).current == 1
    assert [instance.placement.start for instance in nvml.gpu_instances(gpu, 9)] == [4]


def test_a_state_that_is_there_keeps_its_partitions(tmp_path: Path) -> None:
    open_simulated("dgx-h100", tmp_path, parse_mig_flag("0=1g.10gb"))
    nvml = open_simulated("dgx-h100", tmp_path, parse_mig_flag("0=7g.80gb"))
    nvml.init()
    assert len(nvml.gpu_instances(nvml.device_by_index(0), 19)) == 1


def test_a_state_of_another_machine_is_refused(tmp_path: Path) -> None:
    open_node("dgx-h100", tmp_path)
    with pytest.raises(FatalError) as raised:
        open_node("t4x4", tmp_path / STATE_FILE)
    assert str(raised.value) == (
        f"open simulated node {tmp_path / STATE_FILE}: it is machine dgx-h100, not t4x4; "
        "remove the file or give another folder"
    )


def test_a_hand_edit_reaches_readers(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    edit(node.store.path, lambda state: state["gpus"][3].update(lost=True))
    gpu = nvml.device_by_index(3)
    with pytest.raises(NvmlError) as raised:
        nvml.uuid(gpu)
    assert raised.value.code == NvmlCode.GPU_IS_LOST


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.update(surprise=1), "surprise: extra inputs are not permitted"),
        (lambda state: state["gpus"][0].update(minor="x"), "gpus.0.minor: input should be a valid integer"),
        (lambda state: state.update(faults=[{"call": "memry_info"}]), "(did you mean memory_info?)"),
        (lambda state: state.update(faults=[{"code": "GPU_LOST"}]), "no NVML code is called GPU_LOST"),
    ],
)
def test_a_wrong_edit_leaves_the_last_good_state(
    node: SimulatedNode,
    nvml: SimulatedNvml,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Any], object],
    message: str,
) -> None:
    edit(node.store.path, change)
    broken = node.store.path.read_text()
    with caplog.at_level(logging.WARNING):
        assert nvml.device_count() == 8
        assert nvml.device_count() == 8
    assert len(caplog.messages) == 1, "said once for each edit"
    assert message in caplog.messages[0]
    with pytest.raises(StateFileError, match="mend or remove the file"):
        node.push_xid(0, 79)
    with pytest.raises(NvmlError) as raised:
        nvml.set_mig_mode(nvml.device_by_index(0), 1)
    assert raised.value.code == NvmlCode.UNKNOWN
    assert node.store.path.read_text() == broken, "the person's edit is kept"


def test_half_a_file_is_not_an_end(node: SimulatedNode, nvml: SimulatedNvml) -> None:
    whole = node.store.path.read_text()
    node.store.path.write_text(whole[: len(whole) // 2])
    assert nvml.device_count() == 8
    node.store.path.write_text(whole)
    node.push_xid(0, 79)
    assert len(node.state().events) == 1


def test_a_broken_file_at_the_start_says_where(tmp_path: Path) -> None:
    path = tmp_path / STATE_FILE
    path.write_text('{"format": 1,\n oops}')
    with pytest.raises(StateFileError) as raised:
        open_node("dgx-h100", tmp_path)
    assert str(raised.value).startswith(f"read simulated node {path}: ")
    assert "line 2" in str(raised.value)


def test_a_look_at_an_unchanged_file_does_not_read_it(node: SimulatedNode) -> None:
    assert node.store.read() is node.store.read()
    other = StateStore(node.store.path)
    before = other.read()
    node.push_xid(0, 79)
    assert other.read() is not before


def test_a_change_that_fails_writes_nothing(node: SimulatedNode) -> None:
    before = node.store.path.read_bytes()

    def change(state: NodeState) -> None:
        state.boots = 99
        raise NvmlError(NvmlCode.IN_USE, "x")

    with pytest.raises(NvmlError):
        node.store.update(change)
    assert node.store.path.read_bytes() == before
    assert node.state().boots == 1


def test_nothing_is_left_beside_the_file(node: SimulatedNode) -> None:
    node.push_xid(0, 79)
    assert sorted(os.listdir(node.store.path.parent)) == [f".{STATE_FILE}.lock", STATE_FILE]
