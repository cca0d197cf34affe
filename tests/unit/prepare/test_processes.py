"""Looking for pods' processes in every cgroup layout, and what counts as not being able to see."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from kubeletplugin.ledger.model import HeldDevice
from kubeletplugin.nvml.errors import NvmlCode, NvmlError, NvmlTimeoutError
from kubeletplugin.prepare.ports import Look
from kubeletplugin.prepare.processes import BlindError, PodCgroups, PodProcesses

pytestmark = pytest.mark.anyio

POD = "0f6e1bbb-6b4c-4c0b-9a55-0123456789ab"
OTHER = "11111111-2222-4333-8444-555555555555"
STATIC = "0123456789abcdef0123456789abcdef"
GPU = HeldDevice("gpu-0", "GPU-0", "GPU-0", True)

LAYOUTS = {
    "cgroupfs v1 guaranteed": ["memory/kubepods/pod{uid}/0abc"],
    "cgroupfs v1 burstable": ["cpu/kubepods/burstable/pod{uid}/0abc"],
    "cgroupfs v1 best effort, one hierarchy only": ["systemd/kubepods/besteffort/pod{uid}/0abc"],
    "cgroupfs v2": ["kubepods/burstable/pod{uid}/0abc"],
    "cgroupfs hybrid": ["unified/kubepods/besteffort/pod{uid}/0abc"],
    "systemd v1": ["pids/kubepods.slice/kubepods-pod{uid_}.slice/cri-containerd-0abc.scope"],
    "systemd v2": ["kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice/cri-0abc.scope"],
    "systemd v2 best effort": ["kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice/x.scope"],
    "kind, systemd": ["kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{uid_}.slice/cri-0abc.scope"],
    "kind, cgroupfs": ["memory/kubelet/kubepods/besteffort/pod{uid}/0abc"],
    "nested below the container": ["kubepods/pod{uid}/0abc/init/deeper"],
}


class Host:
    """A cgroup tree and a /proc of their own."""

    def __init__(self, folder: Path) -> None:
        self.cgroups, self.proc = folder / "cgroup", folder / "proc"
        for path in (self.cgroups, self.proc):
            path.mkdir()
        self.agent_is(os.getpid())
        self.process("self", "/system.slice/agent.service")
        self.process("1", "/init.scope")

    def group(self, path: str, *pids: int) -> Path:
        """With all groups above it, as a real tree has them."""
        directory = self.cgroups
        for part in Path(path).parts:
            directory /= part
            directory.mkdir(exist_ok=True)
            if not (directory / "cgroup.procs").exists():
                (directory / "cgroup.procs").write_text("")
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return directory

    def agent_is(self, pid: int) -> None:
        """The pid by which this /proc knows the process that reads it."""
        (self.proc / str(pid)).mkdir()
        (self.proc / "self").unlink(missing_ok=True)
        (self.proc / "self").symlink_to(str(pid))

    def namespace(self, process: str, inode: int) -> None:
        (self.proc / process / "ns").mkdir()
        (self.proc / process / "ns" / "pid").symlink_to(f"pid:[{inode}]")

    def process(self, pid: str, *cgroups: str) -> None:
        (self.proc / pid).mkdir(exist_ok=True)
        lines = [f"{number}:memory:{cgroup}\n" for number, cgroup in enumerate(cgroups)]
        (self.proc / pid / "cgroup").write_text("".join(lines))

    def look(self) -> PodCgroups:
        return PodCgroups(self.cgroups, self.proc)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def _paths(layout: str, uid: str) -> list[str]:
    return [path.format(uid=uid, uid_=uid.replace("-", "_")) for path in LAYOUTS[layout]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("uid", [POD, STATIC])
def test_every_layout(host: Host, layout: str, uid: str) -> None:
    for path in _paths(layout, uid):
        host.group(path, 41, 42)
    for path in _paths(layout, OTHER):
        host.group(path)

    assert host.look().pids_of([uid, OTHER, "unknown"]) == {uid: {41, 42}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("uid", [POD, STATIC])
def test_a_process_is_attributed_to_its_pod_by_its_own_cgroup(host: Host, layout: str, uid: str) -> None:
    host.process("41", *(f"/{path}" for path in _paths(layout, uid)))
    host.process("42", "/user.slice/user-0.slice/session-1.scope", "/tripod/podium")

    assert host.look().by_pod([41, 42, 43]) == {uid: {41}}


def test_pids_of_all_hierarchies_and_containers_count(host: Host) -> None:
    host.group(f"memory/kubepods/pod{POD}/pause", 1001)
    host.group(f"memory/kubepods/pod{POD}/main", 1002, 1003)
    host.group(f"pids/kubepods/pod{POD}/main", 1002, 1004)
    (host.cgroups / "cpu,cpuacct").mkdir()
    (host.cgroups / "cpu").symlink_to("cpu,cpuacct")

    assert host.look().pids_of([POD]) == {POD: {1001, 1002, 1003, 1004}}


def test_a_pod_without_a_group_has_ended_where_others_are_seen(host: Host) -> None:
    host.group("kubepods/burstable")
    assert host.look().pids_of([POD]) == {}


def test_a_process_of_a_foreign_pid_namespace_is_there_all_the_same(host: Host) -> None:
    host.group(f"kubepods/pod{POD}/0abc", 0)
    assert host.look().pids_of([POD]) == {POD: {0}}


def test_a_threaded_group_is_read_by_its_threads(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = host.group(f"kubepods/pod{POD}/0abc")
    (directory / "cgroup.threads").write_text("77\n")
    _failing(monkeypatch, directory / "cgroup.procs", OSError(95, "Operation not supported"))
    assert host.look().pids_of([POD]) == {POD: {77}}


@pytest.mark.parametrize("error", [OSError(2, "No such file"), OSError(19, "No such device")])
def test_a_group_that_goes_while_it_is_read_has_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    directory = host.group(f"kubepods/pod{POD}/0abc", 5)
    _failing(monkeypatch, directory / "cgroup.procs", error)
    assert host.look().pids_of([POD]) == {}


def _no_kubepods(host: Host, _: pytest.MonkeyPatch) -> None:
    host.group("system.slice")


def _no_root(host: Host, _: pytest.MonkeyPatch) -> None:
    host.cgroups.rmdir()


def _unreadable(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = host.group(f"kubepods/pod{POD}/0abc", 5)
    _failing(monkeypatch, directory / "cgroup.procs", PermissionError(13, "Permission denied"))


def _own_namespace(host: Host, _: pytest.MonkeyPatch) -> None:
    host.group(f"kubepods/pod{POD}/0abc")
    for process in ("self", "1"):
        host.process(process, f"/kubepods/besteffort/pod{OTHER}/agent")


def _no_proc(host: Host, _: pytest.MonkeyPatch) -> None:
    host.group(f"kubepods/pod{POD}/0abc")
    for process in ("self", "1"):
        (host.proc / process / "cgroup").unlink()
    (host.proc / "self").unlink()


def _known_by_another_pid(host: Host, _: pytest.MonkeyPatch) -> None:
    """The host's /proc, mounted into a pod with a PID namespace of its own."""
    host.agent_is(os.getpid() + 1)
    host.process("self", "/")


def _pid_is_the_same_by_chance(host: Host, _: pytest.MonkeyPatch) -> None:
    host.namespace("self", 4026532000)
    host.namespace("1", 4026531836)


T = TypeVar("T")
Break = Callable[[Host, pytest.MonkeyPatch], None]


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (_no_kubepods, "no kubepods cgroup under"),
        (_no_root, "No such file or directory"),
        (_unreadable, "Permission denied"),
        (_own_namespace, "isn't in the host's PID namespace"),
        (_known_by_another_pid, "isn't in the host's PID namespace"),
        (_pid_is_the_same_by_chance, "isn't in the host's PID namespace"),
        (_no_proc, "No such file or directory"),
    ],
)
async def test_a_look_that_cannot_see_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch, break_it: Break, why: str
) -> None:
    break_it(host, monkeypatch)
    with pytest.raises(BlindError, match=why):
        host.look().pids_of([POD])
    look = await PodProcesses(host.look(), Pids(), offload=_at_once).look([POD], [])
    assert why in look.blind
    assert look.alive == {}


def test_nobody_asked_for_is_nothing_to_see(host: Host) -> None:
    host.cgroups.rmdir()
    assert host.look().pids_of([]) == {}


def test_in_the_hosts_namespace_the_agents_own_pod_is_no_obstacle(host: Host) -> None:
    host.process("self", f"/kubepods/pod{OTHER}/agent")
    host.group(f"kubepods/pod{POD}/0abc", 5)
    assert host.look().pids_of([POD]) == {POD: {5}}


def test_no_processes_on_a_device_are_none_in_the_hosts_namespace_only(host: Host) -> None:
    assert host.look().by_pod([]) == {}
    host.agent_is(os.getpid() + 1)
    host.process("self", "/")
    with pytest.raises(BlindError, match="PID namespace"):
        host.look().by_pod([])


class Pids:
    """NVML's list of processes."""

    def __init__(self, pids: Collection[int] = (), error: NvmlError | None = None) -> None:
        self._pids = pids
        self._error = error

    async def pids(self, device: HeldDevice) -> Collection[int]:
        if self._error:
            raise self._error
        return self._pids


async def test_processes_on_the_device_by_pod(host: Host) -> None:
    host.group("kubepods")
    host.process("41", f"/kubepods/pod{POD}/0abc")
    host.process("42", f"/kubepods/pod{OTHER}/0abc")
    host.process("43", "/system.slice/monitor.service")

    look = await PodProcesses(host.look(), Pids([41, 42, 43, 44]), offload=_at_once).look([], [GPU, GPU])

    assert look == Look(on_device={"GPU-0": {POD: frozenset({41}), OTHER: frozenset({42})}})


@pytest.mark.parametrize(
    ("error", "blind"),
    [
        (NvmlTimeoutError("nvmlDeviceGetComputeRunningProcesses", 5), True),
        (NvmlError(NvmlCode.GPU_IS_LOST, "nvmlDeviceGetComputeRunningProcesses"), True),
        (NvmlError(NvmlCode.NOT_SUPPORTED, "nvmlDeviceGetComputeRunningProcesses"), False),
    ],
)
async def test_nvml_that_does_not_tell(host: Host, error: NvmlError, blind: bool) -> None:
    host.group("kubepods")
    look = await PodProcesses(host.look(), Pids(error=error), offload=_at_once).look([], [GPU])
    assert ("GPU-0" in look.blind_devices) == blind
    assert look.on_device == ({} if blind else {"GPU-0": {}})


async def test_without_nvml_the_cgroups_have_to_do(host: Host) -> None:
    host.group(f"kubepods/pod{POD}/0abc", 5)
    look = await PodProcesses(host.look(), offload=_at_once).look([POD], [GPU])
    assert look == Look({POD: frozenset({5})}, {"GPU-0": {}})


async def _at_once(work: Callable[[], T], /) -> T:
    return work()


def _failing(monkeypatch: pytest.MonkeyPatch, path: Path, error: OSError) -> None:
    read_text = Path.read_text

    def read(self: Path, *args: str) -> str:
        if self == path:
            raise error
        return read_text(self, *args)

    monkeypatch.setattr(Path, "read_text", read)


async def test_a_group_at_the_top_that_goes_between_two_listings_is_passed_over(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.group("kubelet")
    host.group(f"kubepods/pod{POD}/0abc", 5)
    _unlistable(monkeypatch, host.cgroups / "kubelet", FileNotFoundError(2, "No such file or directory"))
    look = await PodProcesses(host.look(), offload=_at_once).look([POD], [])
    assert look == Look({POD: frozenset({5})})


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RuntimeError("nobody foresaw this")])
async def test_whatever_else_goes_wrong_makes_a_look_blind(
    host: Host, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    host.group("kubelet")
    _unlistable(monkeypatch, host.cgroups / "kubelet", error)
    look = await PodProcesses(host.look(), Broken(), offload=_at_once).look([POD], [GPU])
    assert "ermission denied" in look.blind or "nobody foresaw" in look.blind
    assert look.blind_devices == {"GPU-0": "KeyError: 'bug'"}


async def test_devices_are_looked_at_at_the_same_time(host: Host) -> None:
    """A driver that hangs costs an Unprepare of eight GPUs one deadline."""
    meeting = Meeting(8)
    gpus = [HeldDevice(f"gpu-{index}", f"GPU-{index}", f"GPU-{index}", True) for index in range(8)]
    look = await asyncio.wait_for(PodProcesses(host.look(), meeting, offload=_at_once).look([], gpus), 5)
    assert len(look.on_device) == 8


class Broken:
    async def pids(self, device: HeldDevice) -> Collection[int]:
        raise KeyError("bug")


class Meeting:
    """Answers nobody before all have asked."""

    def __init__(self, guests: int) -> None:
        self._missing = guests
        self._complete = asyncio.Event()

    async def pids(self, device: HeldDevice) -> Collection[int]:
        self._missing -= 1
        if not self._missing:
            self._complete.set()
        await self._complete.wait()
        return ()


def _unlistable(monkeypatch: pytest.MonkeyPatch, path: Path, error: Exception) -> None:
    iterdir = Path.iterdir

    def listing(self: Path) -> Iterator[Path]:
        if self == path:
            raise error
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", listing)
