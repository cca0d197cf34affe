"""The real NVML on a real GPU: what it says agrees with nvidia-smi. Run with ``pytest -m hardware tests/hardware``."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.nvml.api import EVENT_XID, Memory, Nvml, PciInfo
from kubeletplugin.nvml.errors import UNSUPPORTED, NvmlCode, NvmlError
from kubeletplugin.nvml.library import find_library
from kubeletplugin.nvml.real import open_real
from kubeletplugin.nvml.worker import NvmlWorkers
from tests.contract.nvml.snapshot import device_snapshot, outcome, snapshot

pytestmark = pytest.mark.hardware

ROOTS = (Path("/"), Path("/run/nvidia/driver"))
QUERIED = ("index", "uuid", "name", "pci.bus_id", "memory.total", "driver_version", "compute_cap", "serial")
CORE = ("uuid", "name", "index", "minor_number", "brand", "architecture", "cuda_compute_capability", "pci_info")


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    search = find_library(ROOTS)
    if search.path is None:
        pytest.skip(search.explain())
    session = open_real(ROOTS)
    session.init()
    if not session.device_count():
        pytest.skip(f"{search.path}: the driver sees no GPU")
    yield session
    session.shutdown()


@pytest.fixture
def smi() -> list[dict[str, str]]:
    """nvidia-smi's word on each GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        pytest.skip("no nvidia-smi on PATH to compare with")
    command = [program, f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [dict(zip(QUERIED, line.split(", "), strict=True)) for line in lines]


def test_agrees_with_nvidia_smi(nvml: Nvml, smi: list[dict[str, str]]) -> None:
    assert nvml.device_count() == len(smi)
    for gpu in smi:
        answers = device_snapshot(nvml, nvml.device_by_uuid(gpu["uuid"]))
        assert answers["name"] == gpu["name"]
        assert answers["index"] == int(gpu["index"])
        pci, memory = answers["pci_info"], answers["memory_info"]
        assert isinstance(pci, PciInfo)
        assert pci.bus_id.lower() == gpu["pci.bus_id"].lower()
        if isinstance(memory, Memory):
            assert memory.total >> 20 == int(gpu["memory.total"])
        else:
            assert gpu["memory.total"] in ("[N/A]", "[Not Supported]")
        assert answers["cuda_compute_capability"] == tuple(map(int, gpu["compute_cap"].split(".")))
        assert answers["serial"] in (gpu["serial"], *UNSUPPORTED)
        assert nvml.driver_version() == gpu["driver_version"]


def test_every_getter_answers_or_is_unsupported(nvml: Nvml) -> None:
    answers = snapshot(nvml)
    for key, answer in answers.items():
        if isinstance(answer, NvmlCode):
            # An argument that is out of range on this part, and an absent MIG device, are answers too.
            assert answer in UNSUPPORTED | {NvmlCode.INVALID_ARGUMENT, NvmlCode.NOT_FOUND}, key
    for index in range(nvml.device_count()):
        missing = [name for name in CORE if isinstance(answers[f"{index}.{name}"], NvmlCode)]
        assert not missing
        assert answers[f"{index}.found by UUID"] is True


def test_events_can_be_waited_for(nvml: Nvml) -> None:
    events = nvml.create_event_set()
    for index in range(nvml.device_count()):
        device = nvml.device_by_index(index)
        supported = outcome(nvml.supported_event_types, device)
        if isinstance(supported, int) and not isinstance(supported, NvmlCode) and supported & EVENT_XID:
            events.register(device, EVENT_XID)
    with pytest.raises(NvmlError) as failure:
        events.wait(10)
    assert failure.value.code == NvmlCode.TIMEOUT
    events.free()


@pytest.mark.anyio
async def test_calls_work_off_the_event_loop(nvml: Nvml) -> None:
    workers = NvmlWorkers()
    device = nvml.device_by_index(0)
    assert await workers.call("0", nvml.uuid, device) == nvml.uuid(device)
    workers.close()


def test_a_new_session_after_the_old(nvml: Nvml) -> None:
    """As after a driver reload."""
    uuid = nvml.uuid(nvml.device_by_index(0))
    nvml.shutdown()
    nvml.init()
    assert nvml.uuid(nvml.device_by_index(0)) == uuid
