"""The machine under the agent: what is refused, in which words, and what a restarted agent finds again."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.app.host.hardware import Hardware, NvmlDevicePids, open_hardware
from kubeletplugin.app.host.look import look
from kubeletplugin.app.host.simulation import mig_layout
from kubeletplugin.app.settings import ExcludedGpu, Settings
from kubeletplugin.cdi.roots import DriverRoot
from kubeletplugin.errors import FatalError, RecoverableError
from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.simulated import LayoutError, open_node
from kubeletplugin.nvml.simulated.state import ProcessState
from kubeletplugin.nvml.worker import NvmlWorkers

MIG = ("0=1g.10gb,3g.40gb",)


def chosen(**values: Any) -> Settings:
    return Settings.model_validate(values)


def opened(folder: Path, **values: Any) -> Hardware:
    return open_hardware(chosen(machine="dgx-h100", **values), folder / "machine.json")


def names(hardware: Hardware, **values: Any) -> list[str]:
    found = asyncio.run(look(chosen(machine="dgx-h100", **values), hardware))
    return [device.name for device in found.devices]


# --- bad input ---
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"machine": "dgx-h10"},
            r"find machine 'dgx-h10': no such profile \(did you mean dgx-h100\?\); give a file or",
        ),
        ({"machine": "/not/there.json"}, r"read machine profile /not/there.json: no such file; give a file or one of"),
        ({"machine": "{folder}"}, "machine profile"),
        ({"machine": "{folder}/bad.json"}, "bad.json"),
        ({"machine": "", "mig": MIG}, "--mig lays out a simulated machine's GPUs: it needs --machine"),
        ({"mig": ("0=1g.10g",)}, r"lay out GPU 0: no MIG profile '1g.10g' \(did you mean 1g.10gb\?\)"),
        ({"mig": ("9=1g.10gb",)}, "GPU 9"),
        ({"mig": ("0=7g.80gb,1g.10gb",)}, "GPU 0"),
        ({"mig": ("x=1g.10gb",)}, "x"),
        ({"mig": ("/not/there.yaml",)}, "/not/there.yaml"),
        ({"mig": ("{folder}/layout.yaml", "0=1g.10gb")}, r"give one file \(.*layout.yaml\) or GPU=PROFILE,... flags"),
        ({"machine": "l4x1", "mig": ("0=1g.10gb",)}, "MIG"),
        ({"machine_state": "{folder}/bad.json"}, "bad.json"),
        ({"machine_state": "/proc/none/machine.json"}, "make the simulated machine /proc/none/machine.json: "),
    ],
)
def test_bad_input_is_one_line(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    put = {
        name: tuple(item.format(folder=tmp_path) for item in value)
        if isinstance(value, tuple)
        else value.format(folder=tmp_path)
        for name, value in ({"machine": "dgx-h100"} | values).items()
    }
    with pytest.raises(FatalError, match=message) as caught:
        open_hardware(chosen(**put), tmp_path / "machine.json")
    assert "\n" not in str(caught.value)


def test_the_state_of_another_machine_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(FatalError, match="it is machine dgx-h100, not l4x1; remove the file or give another folder"):
        open_hardware(chosen(machine="l4x1"), tmp_path / "machine.json")


def test_a_boot_id_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    hardware = opened(tmp_path)
    (hardware.proc / "sys" / "kernel" / "random" / "boot_id").unlink()
    with pytest.raises(FatalError, match=r"read the boot id from .*: No such file or directory"):
        hardware.boot_id()


# --- a simulated machine ---
def test_a_restarted_agent_finds_the_same_machine(tmp_path: Path) -> None:
    first, second = opened(tmp_path, mig=MIG), opened(tmp_path)
    assert second.boot_id() == first.boot_id() != ""
    assert names(second) == names(first) != names(opened(tmp_path / "other"))


def test_its_state_is_in_the_plugin_folder_unless_said_otherwise(tmp_path: Path) -> None:
    values: dict[str, Any] = {"machine": "l4x1", "kubelet_root_dir": tmp_path}
    open_hardware(chosen(**values))
    assert (tmp_path / "plugins" / "gpu.nvidia.com" / "simulated-node.json").exists()
    open_hardware(chosen(**values, machine_state=str(tmp_path / "x" / "here.json")))
    assert (tmp_path / "x" / "here.json").exists()


def test_a_tree_that_was_made_before_is_used(tmp_path: Path) -> None:
    node = open_node("dgx-h100", tmp_path / "machine.json")
    node.materialise(tmp_path / "elsewhere", "placeholder")
    hardware = opened(tmp_path)
    assert hardware.host == DriverRoot(tmp_path / "elsewhere", str(tmp_path / "elsewhere"))
    assert hardware.locate_driver() == hardware.host
    assert hardware.proc == tmp_path / "elsewhere" / "proc"


def test_a_machine_and_a_layout_may_be_files(tmp_path: Path) -> None:
    layout = tmp_path / "layout.yaml"
    layout.write_text(json.dumps({"0": ["1g.10gb", "3g.40gb"]}))
    flags, file = opened(tmp_path / "flags", mig=MIG), opened(tmp_path / "file", mig=(str(layout),))
    assert names(file) == names(flags)


@pytest.mark.parametrize("flags", [("a.yaml", "b.yaml"), ("a.yaml", "0=1g.10gb")])
def test_one_layout_file_or_flags(flags: tuple[str, ...]) -> None:
    with pytest.raises(LayoutError, match="not both"):
        mig_layout(flags)


# --- the real machine ---
def test_driver_roots_lie_below_the_host_root(tmp_path: Path) -> None:
    """Seen at one path by the agent, and called another by the host."""
    hardware = open_hardware(chosen(host_root=tmp_path, driver_roots=("/", "/run/nvidia/driver")))
    assert hardware.host == DriverRoot(tmp_path, "/")
    assert hardware.locate_driver() is None
    library = tmp_path / "run/nvidia/driver/usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(Path("/proc/self/exe").read_bytes()[:4096])
    assert hardware.locate_driver() == DriverRoot(tmp_path / "run/nvidia/driver", "/run/nvidia/driver")


def test_a_look_without_a_driver_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    settings = chosen(host_root=tmp_path, driver_roots=("/", "/opt/driver"))
    with pytest.raises(RecoverableError) as caught:
        asyncio.run(look(settings, open_hardware(settings)))
    message = str(caught.value)
    assert message.startswith(
        f"look at the GPUs: find libnvidia-ml.so.1: not found under any driver root ({tmp_path}: "
    )
    assert f"{tmp_path}/opt/driver: " in message
    assert message.endswith("install the NVIDIA driver on the node, or name its root")


def test_a_look_leaves_out_what_is_excluded_and_says_so(tmp_path: Path) -> None:
    hardware = opened(tmp_path)
    found = asyncio.run(look(chosen(machine="dgx-h100"), hardware))
    gone = found.devices[3]
    excluded = (ExcludedGpu(gpu=gone.uuid, reason="bad fan"), ExcludedGpu(gpu="GPU-none"))
    less = asyncio.run(look(chosen(machine="dgx-h100", exclude=excluded), hardware))
    assert [device.name for device in less.devices] == [d.name for d in found.devices if d is not gone]
    assert [(gpu.uuid, gpu.excluded) for gpu in less.withheld] == [(gone.uuid, True)]
    assert "bad fan" in less.withheld[0].reason
    assert any("GPU-none" in notice.text for notice in less.notices)


# --- processes on a device ---
@pytest.mark.anyio
async def test_processes_of_a_gpu_and_of_its_partitions(tmp_path: Path) -> None:
    hardware = opened(tmp_path, mig=("0=3g.40gb,3g.40gb",))
    found = (await look(chosen(machine="dgx-h100", mig=MIG), hardware)).devices
    first, second, whole = found[0], found[1], found[2]
    assert first.mig is not None
    assert second.mig is not None
    node = open_node("dgx-h100", tmp_path / "machine.json")
    ids = [(d.mig.gpu_instance_id, d.mig.compute_instance_id) for d in (first, second) if d.mig]
    node.set_processes(
        0, [ProcessState(pid=101 + n, gpu_instance=gi, compute_instance=ci) for n, (gi, ci) in enumerate(ids)]
    )
    node.set_processes(whole.gpu_uuid, [103])
    workers = NvmlWorkers(5.0)
    nvml = hardware.nvml
    nvml.init()
    try:
        pids = NvmlDevicePids(nvml, workers)
        held = [HeldDevice(d.name, d.uuid, d.gpu_uuid, d.mig is None) for d in (first, second, whole)]
        parent = HeldDevice("gpu-0", first.gpu_uuid, first.gpu_uuid, True)
        assert [set(await pids.pids(device)) for device in held] == [{101}, {102}, {103}]
        assert set(await pids.pids(parent)) == {101, 102}
    finally:
        nvml.shutdown()
        workers.close()


@pytest.mark.anyio
async def test_nobody_is_on_a_partition_that_was_destroyed(tmp_path: Path) -> None:
    """A look that can't see is none that sees nothing, but here the GPU answers: no later claim waits for ever."""
    hardware = opened(tmp_path, mig=("0=3g.40gb,3g.40gb",))
    first = (await look(chosen(machine="dgx-h100", mig=MIG), hardware)).devices[0]
    gone = HeldDevice("gpu-0-mig-3g.40gb-9-0", "MIG-00000000-0000-4000-8000-000000000000", first.gpu_uuid, False)
    nowhere = HeldDevice(
        "gpu-9", "GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000000", True
    )
    workers = NvmlWorkers(5.0)
    hardware.nvml.init()
    try:
        pids = NvmlDevicePids(hardware.nvml, workers)
        assert set(await pids.pids(gone)) == set()
        with pytest.raises(NvmlError):
            await pids.pids(nowhere)
    finally:
        hardware.nvml.shutdown()
        workers.close()
